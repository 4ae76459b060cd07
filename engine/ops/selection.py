"""Index scores, top-k with "lower index wins", and candidate blocks.

``visible`` [T] is the number of compressed entries that a query may see: those below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import integers, normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    pass


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


_TIES = "the lower index"
_SCORES = Argument("score", "[T, N]", ("float32", "float64"))


def _score_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    inputs = {
        "query": normal((5, 32, 128), generator, device),
        "keys": normal((70, 128), generator, device),
        "weights": normal((5, 32), generator, device),
    }
    yield Case("5x32x128, 70 keys", inputs, {}, {"out": ((5, 70), torch.float32)})


register(
    Op(
        Contract(
            "index.scores",
            "out = sum over h of w_h * relu(q_h . k), times (heads * width)^-0.5",
            (
                Argument("query", "[T, h, c]", ("bfloat16", "float32", "float64")),
                Argument("keys", "[N, c]", ("bfloat16", "float32", "float64")),
                Argument("weights", "[T, h]", ("bfloat16", "float32", "float64")),
                Argument("out", "[T, N], +0 for -0", ("float32", "float64"), "out"),
            ),
            {},
            "The lightning indexer of DeepSeek sparse attention",
            tolerance=1e-5,
        ),
        lambda inputs, scalars: {"out": scores(inputs["query"], inputs["keys"], inputs["weights"])},
        _score_cases,
    )
)


def _tied_scores(rows: int, count: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """Scores of which many are equal, zeros of both signs among them."""
    whole = integers((rows, count), -3, 4, generator, device).float()
    return torch.where(normal((rows, count), generator, device) > 0.0, whole, -whole) * 0.5


def _top_k_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for count in (1, 12, 60):
        allowed = torch.rand(6, 50, generator=generator).to(device) < 0.7
        inputs = {"score": _tied_scores(6, 50, generator, device), "allowed": allowed}
        yield Case("best %d of 50, tied" % count, inputs, {"count": count}, {"out": ((6, 50), torch.bool)})


register(
    Op(
        Contract(
            "index.top_k",
            "out marks the count largest allowed scores, all of them where there are fewer",
            (_SCORES, Argument("allowed", "[T, N]", ("bool",)), Argument("out", "[T, N]", ("bool",), "out")),
            {"count": "how many"},
            "Selection by (score descending, index ascending); -0 equals +0",
            ties=_TIES,
        ),
        lambda inputs, scalars: {"out": top_k(inputs["score"], inputs["allowed"], int(scalars["count"]))},
        _top_k_cases,
    )
)


def _block_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for blocks in (2, 3, 9):
        inputs = {
            "score": _tied_scores(6, 50, generator, device),
            "visible": integers((6,), 0, 51, generator, device),
        }
        label = "best %d blocks of 8, tied" % blocks
        yield Case(label, inputs, {"size": 8, "blocks": blocks}, {"out": ((6, 50), torch.bool)})


register(
    Op(
        Contract(
            "index.candidate_blocks",
            "out marks visible entries in the best blocks by their largest score; the newest entry's is always in",
            (_SCORES, Argument("visible", "[T]", ("int64",)), Argument("out", "[T, N]", ("bool",), "out")),
            {"size": "entries of a block", "blocks": "how many blocks"},
            "The first of the two levels of the index",
            ties="the lower block",
        ),
        lambda inputs, scalars: {
            "out": candidate_blocks(inputs["score"], inputs["visible"], int(scalars["size"]), int(scalars["blocks"]))
        },
        _block_cases,
    )
)
