"""Index scores, top-k with "lower index wins", and candidate blocks.

``visible`` [T] is the number of compressed entries that a query may see: those below it.
"""

from __future__ import annotations

import math

import torch

from deepinfer.engine.ops.precision import wide


def scores(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """fp32 [T, N]: ``sum_h w_h relu(q_h . k)`` times (heads * width)^-0.5. ``query`` [T, h, c], ``keys`` [N, c]."""
    products = torch.einsum("thc,nc->thn", wide(query), wide(keys)).relu()
    total: torch.Tensor = torch.einsum("th,thn->tn", wide(weights), products)
    # -0 equals +0, and must in every order
    return total / math.sqrt(query.shape[1] * query.shape[2]) + 0.0


def top_k(score: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
    """bool [T, N]: the ``count`` largest of the ``allowed`` ones; of equal scores the lower index."""
    ranked = score.masked_fill(~allowed, float("-inf"))
    order = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :count]
    chosen = torch.zeros_like(allowed)
    chosen.scatter_(1, order, torch.ones_like(order, dtype=torch.bool))
    return chosen & allowed


def below(visible: torch.Tensor, count: int) -> torch.Tensor:
    """bool [T, count]: entry j is seen if j < visible."""
    return torch.arange(count, device=visible.device)[None, :] < visible[:, None]


def candidate_blocks(score: torch.Tensor, visible: torch.Tensor, size: int, blocks: int) -> torch.Tensor:
    """bool [T, N]: positions in the ``blocks`` best blocks of ``size``; the block of the newest entry is always in."""
    rows, count = score.shape
    if count == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    padded = -(-count // size) * size
    seen = torch.nn.functional.pad(
        score.masked_fill(~below(visible, count), float("-inf")), (0, padded - count), value=float("-inf")
    )
    best = seen.view(rows, -1, size).amax(-1)
    newest = (visible - 1).clamp_min(0) // size
    best.scatter_(1, newest[:, None], float("inf"))
    allowed = torch.isfinite(best) | (best == float("inf"))
    kept = top_k(best, allowed, blocks)
    return kept.repeat_interleave(size, 1)[:, :count] & below(visible, count)
