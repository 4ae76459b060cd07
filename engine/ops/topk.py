"""Selection of index entries as the kernels do it: packed results, "lower index wins", candidate blocks.

:mod:`deepinfer.engine.ops.selection` has the same choices as masks; these ops emit sorted positions. Scores past a
row's ``visible`` entries are never looked at. NaN counts as -infinity, which is a score like any other, the lowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.registry import register
from deepinfer.engine.ops.selection import below

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

BLOCK = 8  # entries of a candidate block
MOST = 2048  # entries, or blocks, that a row may keep


def best(scores: torch.Tensor, visible: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int32 [T, count] the best visible entries, ascending, then -1; int32 [T] how many they are).

    ``scores`` [T, N], ``visible`` [T]. By (score descending, index ascending); -0 equals +0.
    """
    rows, columns = scores.shape
    seen = below(visible, columns)
    lowest = float("-inf")
    ranked = torch.where(seen & ~scores.isnan(), scores, lowest) + 0.0
    # what is not visible lies behind what is, so that a stable sort puts it last among the lowest
    order = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :count]
    found = visible.clamp(0, columns).clamp_max(count)
    chosen = torch.full((rows, count), columns, dtype=torch.int64, device=scores.device)
    chosen[:, : order.shape[1]] = order.masked_fill(~below(found, order.shape[1]), columns)
    chosen = chosen.sort(dim=1).values
    return chosen.masked_fill(chosen == columns, -1).int(), found.int()


def select(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``indices`` and ``count`` of the contract, by sorting."""
    indices, count = best(inputs["scores"], inputs["visible"], int(scalars["k"]))
    if "blocks" in inputs:
        ids = inputs["blocks"].long().gather(1, indices.long().clamp_min(0) // BLOCK)
        indices = torch.where(indices < 0, indices, (ids * BLOCK).int() + indices % BLOCK)
    return {"indices": indices, "count": count}


def candidate_blocks(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``blocks``, ``count`` and ``entries`` of the contract, by sorting block maxima."""
    scores, visible = inputs["scores"], inputs["visible"].clamp(0, inputs["scores"].shape[1])
    rows, columns = scores.shape
    known = torch.where(below(visible, columns) & ~scores.isnan(), scores, float("-inf"))
    maxima = known.view(rows, -1, BLOCK).amax(-1)
    newest = (visible.long() - 1).clamp_min(0) // BLOCK
    maxima.scatter_(1, newest[:, None], float("inf"))
    blocks, count = best(maxima, -(-visible // BLOCK), int(scalars["most"]))
    held = (visible[:, None] - blocks.clamp_min(0) * BLOCK).clamp(0, BLOCK).masked_fill(blocks < 0, 0)
    return {"blocks": blocks, "count": count, "entries": held.sum(1).int()}


def _select_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    scores = inputs["scores"]
    pointers = (scores, inputs["visible"], inputs.get("blocks"), outputs["indices"], outputs["count"])
    launch(module, "topk_select", *pointers, *scores.shape, int(scalars["k"]), int(scalars["plan"]))


def _blocks_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    scores = inputs["scores"]
    pointers = (scores, inputs["visible"], outputs["blocks"], outputs["count"], outputs["entries"])
    launch(module, "topk_candidate_blocks", *pointers, *scores.shape, int(scalars["most"]), int(scalars["plan"]))


KINDS = ("normal", "ties", "one value", "rising", "falling", "narrow", "special")


def draw(kind: str, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """fp32 [rows, columns] of one of :data:`KINDS`; each is hard for some way of selecting."""
    noise = torch.randn(rows, columns, generator=generator)
    if kind == "ties":  # zeros of both signs among them
        return (noise * 2.0).round() * torch.where(noise > 0.3, -0.5, 0.5)
    if kind == "one value":
        return torch.where(noise > 0.0, 0.0, -0.0)
    if kind in ("rising", "falling"):
        sign = 1.0 if kind == "rising" else -1.0
        return sign * torch.arange(columns).float() + noise
    if kind == "narrow":  # equal in the upper half of the bits
        return 1.0 + torch.randint(0, 4096, (rows, columns), generator=generator) * 2.0**-23
    if kind == "special":  # more of the lowest than a row may leave out, subnormals, infinities
        noise = torch.where(noise.abs() > 0.02, float("nan"), noise * 1e-37)
        noise[:, 3::5] = float("-inf")
        noise[:, 7::1031] = float("inf")
    return noise


def _visible(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """int32 [rows]: all, none, one, and any number between."""
    counts = torch.randint(columns // 2, columns + 1, (rows,), generator=generator, dtype=torch.int32)
    edges = torch.tensor([columns, 0, 1], dtype=torch.int32)
    counts[: min(rows - 1, 3)] = edges[: min(rows - 1, 3)]
    return counts


def _hidden(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Scores that would win, where nobody may look."""
    return scores.masked_fill(~below(visible, scores.shape[1]), float("inf"))


# rows, columns, k, plan: every shape and cluster that the launcher knows, ragged and tiny rows
_SELECT = (
    (5, 64, 16, 0),
    (4, 516, 512, 0),
    (5, 8196, 1, 104),
    (5, 16384, 512, 0),
    (4, 16384, 512, 301),
    (4, 20000, 512, 202),
    (5, 16384, 2048, 0),
    (4, 40004, 1000, 104),
    (2, 32768, 512, 0),
    (2, 40000, 512, 108),
    (2, 131072, 512, 101),
    (2, 131072, 512, 208),
    (2, 131072, 2048, 102),
    (1, 300000, 512, 302),
    (3, 65536, 512, 401),
    (2, 131072, 512, 404),
)


def _select_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Every kind of scores in the short shapes, some in the long ones; hidden scores would win."""
    for turn, (rows, columns, k, plan) in enumerate(_SELECT):
        for kind in _kinds(columns, plan, turn):
            visible = _visible(rows, columns, generator)
            scores = _hidden(draw(kind, rows, columns, generator), visible)
            inputs = {"scores": scores.to(device), "visible": visible.to(device)}
            out = {"indices": ((rows, k), torch.int32), "count": ((rows,), torch.int32)}
            yield Case("%d of %dx%d, plan %d, %s" % (k, rows, columns, plan, kind), inputs, _plan("k", k, plan), out)
    for plan in (0, 102, 204):
        yield _compact_case(plan, generator, device)


def _kinds(columns: int, plan: int, turn: int) -> tuple[str, ...]:
    """All for short rows of one block, three in turn for long ones and clusters, which take their time."""
    return KINDS if columns < 20000 and plan % 100 < 2 else tuple(KINDS[(turn + 2 * i) % len(KINDS)] for i in range(3))


def _plan(name: str, value: int, plan: int) -> Scalars:
    return {name: value, "plan": plan}


def _compact_case(plan: int, generator: torch.Generator, device: str) -> Case:
    """Scores of candidate blocks alone, whose ids skip."""
    rows, blocks, k = 4, MOST, 512
    ids = torch.stack([torch.randperm(16384, generator=generator)[:blocks].sort().values for _ in range(rows)]).int()
    visible = _visible(rows, blocks * BLOCK, generator)
    scores = _hidden(draw("ties", rows, blocks * BLOCK, generator), visible)
    inputs = {"scores": scores.to(device), "visible": visible.to(device), "blocks": ids.to(device)}
    out = {"indices": ((rows, k), torch.int32), "count": ((rows,), torch.int32)}
    return Case("%d of the entries of %d blocks, plan %d" % (k, blocks, plan), inputs, _plan("k", k, plan), out)


_BLOCKS = (
    (5, 64, 3, 0),
    (5, 8192, 512, 102),
    (5, 32768, 2048, 0),
    (3, 65536, 2048, 0),
    (2, 131072, 2048, 101),
    (2, 131072, 2048, 202),
    (1, 400000, 2048, 108),
)


def _block_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Every kind of scores in the short shapes, some in the long ones; hidden scores would win."""
    for turn, (rows, columns, most, plan) in enumerate(_BLOCKS):
        for kind in _kinds(columns, plan, turn):
            visible = _visible(rows, columns, generator)
            scores = _hidden(draw(kind, rows, columns, generator), visible)
            inputs = {"scores": scores.to(device), "visible": visible.to(device)}
            counts = {"count": ((rows,), torch.int32), "entries": ((rows,), torch.int32)}
            out = {"blocks": ((rows, most), torch.int32), **counts}
            label = "%d blocks of %dx%d, plan %d, %s" % (most, rows, columns, plan, kind)
            yield Case(label, inputs, _plan("most", most, plan), out)


_SOURCE = "Selection by (score descending, index ascending); -0 equals +0, NaN is -infinity"
_PLAN = "0: chosen by the shape; else 100 * shape + cluster, see csrc/kernels/topk/cuda/topk.h; never changes a result"
_VISIBLE = Argument("visible", "[T], entries that count: the first ones", ("int32",))

register(
    Op(
        Contract(
            "topk.select",
            "indices holds the min(k, visible) best entries of each row in ascending order, then -1; count how many",
            (
                Argument("scores", "[T, N], N a multiple of 4 (8 with blocks)", ("float32",)),
                _VISIBLE,
                Argument(
                    "blocks",
                    "[T, N / 8], ascending: entry j stands at position 8 * blocks[j // 8] + j % 8",
                    ("int32",),
                    optional=True,
                ),
                Argument("indices", "[T, k], k at most 2048", ("int32",), "out"),
                Argument("count", "[T]", ("int32",), "out"),
            ),
            {"k": "how many of a row", "plan": _PLAN},
            _SOURCE,
            ties="the lower index",
            batch="T",
        ),
        select,
        _select_cases,
        {"cuda": _select_native},
    )
)
register(
    Op(
        Contract(
            "topk.candidate_blocks",
            "blocks holds the most best blocks of 8 entries by their best visible score, the newest entry's always in",
            (
                Argument("scores", "[T, N], N a multiple of 8", ("float32",)),
                _VISIBLE,
                Argument("blocks", "[T, most], ascending, then -1; most is at most 2048", ("int32",), "out"),
                Argument("count", "[T], blocks", ("int32",), "out"),
                Argument("entries", "[T], visible entries in those blocks", ("int32",), "out"),
            ),
            {"most": "how many blocks", "plan": _PLAN},
            _SOURCE,
            ties="the lower block",
            batch="T",
        ),
        candidate_blocks,
        _block_cases,
        {"cuda": _blocks_native},
    )
)
