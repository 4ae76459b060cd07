"""The selection kernels on the device that is here, against torch.topk and the bytes that have to be read.

    python bench/gpu_topk.py [--library FILE] [--check]

Scores are fp32, drawn from a normal distribution unless the case says otherwise; all entries are visible. Peers:
torch.topk, unsorted, which promises no order of ties and none of its output; for candidate blocks a chain of torch
ops. The bound reads every score once. Method: see gpu_timing.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpu_timing import Bench, Row, main

L2_TIMES_FOUR = 200 << 20  # bytes that the input sets of a case sum to at least


def outputs(op: str, rows: int, count: int, torch: Any) -> dict[str, Any]:
    names = {"topk.select": ("indices", "count"), "topk.candidate_blocks": ("blocks", "count", "entries")}[op]
    found = {name: torch.empty(rows, dtype=torch.int32, device="cuda") for name in names[1:]}
    return {names[0]: torch.empty(rows, count, dtype=torch.int32, device="cuda"), **found}


def score_sets(kind: str, rows: int, columns: int, torch: Any) -> list[Any]:
    from deepinfer.engine.ops.topk import draw

    generator = torch.Generator().manual_seed(rows + columns)
    if kind != "normal":
        drawn = draw(kind, rows, columns, generator).cuda()
        return [drawn.clone() for _ in range(max(2, L2_TIMES_FOUR // (rows * columns * 4)))]
    return [torch.randn(rows, columns, device="cuda") for _ in range(max(2, L2_TIMES_FOUR // (rows * columns * 4)))]


def ours(bench: Bench, op: str, scores: list[Any], count: int, blocks: Any = None, plan: int = 0) -> float:
    """Microseconds of one call."""
    from deepinfer.engine.ops.registry import load_all

    torch = bench.torch
    rows, columns = scores[0].shape
    visible = torch.full((rows,), columns, dtype=torch.int32, device="cuda")
    native = load_all()[op].native["cuda"]
    results = outputs(op, rows, count, torch)
    scalars = {"k" if op == "topk.select" else "most": count, "plan": plan}
    extra = {} if blocks is None else {"blocks": blocks}

    def work(i: int) -> None:
        native(bench.module, {"scores": scores[i], "visible": visible, **extra}, results, scalars)

    return bench.time_us(work, len(scores))


def torch_topk(bench: Bench, scores: list[Any], count: int) -> float:
    """Microseconds of the faster of torch's two ways."""
    return bench.time_us(lambda i: bench.torch.topk(scores[i], count, dim=1, sorted=False), len(scores))


def torch_blocks(bench: Bench, scores: list[Any], most: int) -> float:
    """Block maxima, the newest forced in, top-k, sorted: what a model without a kernel runs."""
    torch = bench.torch

    def work(i: int) -> Any:
        maxima = scores[i].view(scores[i].shape[0], -1, 8).amax(-1)
        maxima[:, -1] = float("inf")
        return torch.topk(maxima, most, dim=1, sorted=False).indices.sort(dim=1)

    return bench.time_us(work, len(scores))


def invariance(bench: Bench) -> None:
    """A row alone and in a batch, with every plan: the same bits."""
    from deepinfer.engine.ops.registry import load_all

    torch = bench.torch
    native = load_all()["topk.select"].native["cuda"]
    scores = (torch.randn(64, 131072, device="cuda") * 4).round()  # full of ties
    visible = torch.randint(1, 131073, (64,), device="cuda", dtype=torch.int32)
    found = []
    for plan in (0, 101, 102, 104, 108, 201, 202, 204, 208, 301, 308, 404):
        results = outputs("topk.select", 64, 512, torch)
        native(bench.module, {"scores": scores, "visible": visible}, results, {"k": 512, "plan": plan})
        found.append(results["indices"])
    alone = outputs("topk.select", 1, 512, torch)
    for row in range(0, 64, 7):
        inputs = {"scores": scores[row : row + 1], "visible": visible[row : row + 1].clone()}
        native(bench.module, inputs, alone, {"k": 512, "plan": 0})
        found.append(torch.cat([found[0][:row], alone["indices"], found[0][row + 1 :]]))
    same = all(torch.equal(found[0], other) for other in found)
    print("rows alone and in a batch, every plan: %s" % ("the same bits" if same else "DIFFERENT"))
    if not same:
        raise SystemExit(1)


# rows, columns, scores, goal, least share of the bound
SELECT = (
    (64, 131072, "normal", ">= 4x torch.topk", 0.25),
    (384, 16384, "normal", ">= 4x torch.topk", 0.17),
    (64, 16384, "normal", "", None),
    (384, 131072, "normal", "", 0.4),
    (1, 131072, "normal", "", None),
    (8, 1048576, "normal", "", None),
    (64, 131072, "rising", "", None),
    (64, 131072, "one value", "", None),
    (64, 131072, "ties", "", None),
)


def measure(bench: Bench) -> Iterator[Row]:
    invariance(bench)
    torch = bench.torch
    for rows, columns, kind, goal, floor in SELECT:
        scores = score_sets(kind, rows, columns, torch)
        spent, peer = ours(bench, "topk.select", scores, 512), torch_topk(bench, scores, 512)
        bound = bench.bound_us(read=rows * columns * 4)
        name = "512 of %dx%d, %s" % (rows, columns, kind)
        yield Row(name, spent, bound, "torch.topk", peer, goal, peer >= 4 * spent if goal else None, "fp32", floor)
    for rows in (64, 384):
        scores = score_sets("normal", rows, 16384, torch)
        ids = torch.stack([torch.randperm(16384, device="cuda")[:2048].sort().values for _ in range(rows)]).int()
        spent, peer = ours(bench, "topk.select", scores, 512, blocks=ids), torch_topk(bench, scores, 512)
        bound = bench.bound_us(read=rows * (16384 * 4 + 2048 * 4))
        yield Row("512 of %d x 2048 blocks of 8" % rows, spent, bound, "torch.topk", peer, "", None, "fp32")
    for rows in (64, 384):
        scores = score_sets("normal", rows, 131072, torch)
        spent, peer = ours(bench, "topk.candidate_blocks", scores, 2048), torch_blocks(bench, scores, 2048)
        bound = bench.bound_us(read=rows * 131072 * 4)
        floor = 0.4 if rows > 64 else 0.2
        yield Row("2048 blocks of %dx131072" % rows, spent, bound, "torch chain", peer, "", None, "fp32", floor)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, ("topk.select", "topk.candidate_blocks")))
