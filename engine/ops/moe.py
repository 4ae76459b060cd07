"""Router and experts of the mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.engine.ops.precision import wide


def route(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, count: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(expert ids int64 [T, k] in order of choice, weights fp32 [T, k]).

    ``x`` [T, D], ``gate`` [E, D], ``bias`` fp32 [E] or [T, E]: it takes part in the choice, not in the weight. Scores
    are sqrt(softplus(logit)); the weights are the chosen scores over their sum, times ``scaling``. Ties: the lower id.
    """
    score = torch.nn.functional.softplus(wide(x) @ wide(gate).T).sqrt()
    order = torch.sort(score + bias, dim=-1, descending=True, stable=True).indices[:, :count]
    chosen = score.gather(-1, order)
    return order, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling


def swiglu(gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor, limit: float) -> torch.Tensor:
    """``weight * silu(min(gate, limit)) * clamp(up, -limit, limit)`` in fp32, rounded once. ``weight`` [T]."""
    product = torch.nn.functional.silu(wide(gate).clamp_max(limit)) * wide(up).clamp(-limit, limit)
    return (product * weight.unsqueeze(-1)).to(gate.dtype)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    expert: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """fp32 [T, D]: every token's experts, added in the order of choice, so that no batch changes a sum.

    ``expert(e, rows, weights)`` gives the output rows of expert ``e``, the routing weight already inside.
    """
    parts = torch.zeros(*ids.shape, x.shape[-1], dtype=wide(x).dtype, device=x.device)
    for number in torch.unique(ids).tolist():
        token, slot = (ids == number).nonzero(as_tuple=True)
        parts[token, slot] = expert(int(number), x[token], weights[token, slot]).to(parts.dtype)
    total = torch.zeros_like(parts[:, 0])
    for slot in range(ids.shape[1]):
        total = total + parts[:, slot]
    return total
