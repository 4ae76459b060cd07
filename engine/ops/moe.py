"""Router and experts of the mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import integers, normal, uniform
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def scores(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """[T, E]: sqrt(softplus(logit)) of ``x`` [T, D] and ``gate`` [E, D]."""
    return torch.nn.functional.softplus(wide(x) @ wide(gate).T).sqrt()


def route(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, count: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(expert ids int64 [T, k] in order of choice, weights fp32 [T, k]).

    ``x`` [T, D], ``gate`` [E, D], ``bias`` fp32 [E] or [T, E]: it takes part in the choice, not in the weight. Scores
    are sqrt(softplus(logit)); the weights are the chosen scores over their sum, times ``scaling``. Ties: the lower id.
    """
    score = scores(x, gate)
    order = torch.sort(score + bias, dim=-1, descending=True, stable=True).indices[:, :count]
    chosen = score.gather(-1, order)
    return order, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling


def close(biased: torch.Tensor, count: int) -> torch.Tensor:
    """bool [T]: which experts are the ``count`` best of ``biased`` [T, E], or their order, may hang on fp32 roundings.

    ``biased`` is fp64: scores plus bias. Equal ones do not count: of those the lower id is chosen.
    """
    gap = -biased.sort(dim=1, descending=True).values[:, : count + 1].diff(dim=1)
    return ((gap > 0.0) & (gap < 1e-4)).any(dim=1)


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


_FLOATS = ("bfloat16", "float32", "float64")


def _route(inputs: Tensors, scalars: Scalars) -> Tensors:
    ids, weights = route(inputs["x"], inputs["gate"], inputs["bias"], int(scalars["count"]), scalars["scaling"])
    return {"ids": ids, "weights": weights}


def _route_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Six of 48; experts 7 and 8 are the same, so that they always tie; no other choice hangs on a rounding.

    Values are on a grid, so that every sum of products is exact in fp32 in any order.
    """

    def tokens(count: int) -> torch.Tensor:
        return integers((count, 64), -8, 9, generator, "cpu") * 0.25

    gate = integers((48, 64), -16, 17, generator, "cpu") * 2.0**-6
    bias = normal((9, 48), generator, "cpu") * 0.1
    gate[8], bias[:, 8] = gate[7], bias[:, 7]
    x = tokens(9)
    while bool((again := close(scores(x.double(), gate.double()) + bias, 6)).any()):
        x[again] = tokens(int(again.sum()))
    inputs = {name: tensor.to(device) for name, tensor in (("x", x), ("gate", gate), ("bias", bias))}
    out = {"ids": ((9, 6), torch.int64), "weights": ((9, 6), torch.float32)}
    yield Case("6 of 48", inputs, {"count": 6, "scaling": 1.5}, out)


register(
    Op(
        Contract(
            "moe.route",
            "the count best experts by sqrt(softplus(x . gate)) + bias; weights are their scores over the sum",
            (
                Argument("x", "[T, D]", _FLOATS),
                Argument("gate", "[E, D]", _FLOATS),
                Argument("bias", "[T, E], in the choice alone", ("float32", "float64")),
                Argument("ids", "[T, count], in order of choice", ("int64",), "out", tolerance=0.0),
                Argument("weights", "[T, count]", ("float32", "float64"), "out"),
            ),
            {"count": "experts per token", "scaling": "factor of the weights"},
            "Auxiliary-loss-free routing with sqrt-softplus scores",
            tolerance=1e-5,
            ties="the lower expert",
        ),
        _route,
        _route_cases,
    )
)


def _swiglu_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Values on both sides of the clamp."""
    inputs = {name: normal((6, 64), generator, device) * 8.0 for name in ("gate", "up")}
    inputs["weight"] = uniform((6,), 0.0, 1.5, generator, device)
    yield Case("6x64", inputs, {"limit": 10.0}, {"out": ((6, 64), torch.float32)})


register(
    Op(
        Contract(
            "moe.swiglu",
            "out = weight * silu(min(gate, limit)) * clamp(up, -limit, limit), one rounding",
            (
                Argument("gate", "[T, I]", _FLOATS),
                Argument("up", "[T, I]", _FLOATS),
                Argument("weight", "[T]", ("float32", "float64")),
                Argument("out", "[T, I]", _FLOATS, "out"),
            ),
            {"limit": "of the clamps"},
            "GLU variants, arXiv:2002.05202, clamped",
            tolerance=1e-6,
        ),
        lambda inputs, scalars: {"out": swiglu(inputs["gate"], inputs["up"], inputs["weight"], scalars["limit"])},
        _swiglu_cases,
    )
)
