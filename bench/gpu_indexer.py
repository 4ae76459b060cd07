"""Index scores on the device: all visible entries, and candidate blocks alone, against FP8 paged logits and torch.

    python bench/gpu_indexer.py --library libkernels.so --check

Ours: FP4 keys of 68 bytes, FP4 queries, scores bit for bit those of the contract. Peer: the paged MQA logits of
sgl_deep_gemm where that package is installed, on FP8 keys of 132 bytes with its metadata made beforehand (its time is
not counted). The bound is the larger of the bytes that must move (keys once per sequence, candidates once per row,
scores) and of the products at the FP8 rate. Keys and queries are quantized normal numbers.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpu_timing
from gpu_timing import Bench, Row

CONTEXT, SEQUENCES, BLOCKS = 131072, 64, 2048
PAGE, PEER_PAGE = 128, 64
POOL = SEQUENCES * CONTEXT  # keys in memory; smaller cases rotate through them
ROTATE = 260_000_000  # bytes that the sets of one case sum to
FORM, PEER_FORM = "FP4-32 x FP4-32", "sgl_deep_gemm FP8"
GOAL = 6.0
PATIENCE_S = 16.0  # the peer compiles at its first call; cases that come later go without it


@dataclass
class Shape:
    """``sequences`` with ``rows`` query rows each over ``context`` keys; ``together`` rows share a key's load."""

    sequences: int
    rows: int
    context: int
    together: int = 1


class Ours:
    """Keys of all cases in one pool of pages, and calls of the two kernels."""

    def __init__(self, bench: Bench) -> None:
        from deepinfer.engine.ops import indexer

        self.torch, self.module, self.op = bench.torch, bench.module, indexer
        torch = self.torch
        torch.manual_seed(11)
        self.pages = torch.empty(POOL // PAGE, PAGE * 68, dtype=torch.uint8, device="cuda")
        step = 8192  # pages
        for start in range(0, POOL // PAGE, step):
            codes, scales = indexer.pack(torch.randn(step * PAGE, 128, device="cuda", dtype=torch.bfloat16))
            self.pages[start : start + step] = indexer.to_pages(codes, scales, PAGE, PAGE * 68)

    def native(self, name: str) -> Any:
        """The call of a registered op's kernel."""
        from deepinfer.engine.ops.registry import load_all

        return load_all()[name].native["cuda"]

    def inputs(self, shape: Shape, number: int) -> dict[str, Any]:
        """Set ``number`` of a case: its own pages, in random order."""
        torch = self.torch
        rows, per = shape.sequences * shape.rows, shape.context // PAGE
        queries = torch.randn(rows, 32, 128, device="cuda", dtype=torch.bfloat16)
        codes, scales = self.op.pack(queries)
        order = torch.randperm(POOL // PAGE, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        start = number * shape.sequences * per % (POOL // PAGE)  # the largest case has one set of pages
        last = torch.arange(1 - shape.rows, 1, device="cuda", dtype=torch.int32).repeat(shape.sequences)
        return {
            "query": codes,
            "query_scale": scales,
            "weights": torch.randn(rows, 32, device="cuda"),
            "pages": self.pages,
            "block_table": order[start : start + shape.sequences * per].view(shape.sequences, per).int().contiguous(),
            "sequence": torch.arange(shape.sequences, device="cuda", dtype=torch.int32).repeat_interleave(shape.rows),
            "visible": (last + shape.context).contiguous(),
        }

    def dense(self, shape: Shape, sets: int) -> Callable[[int], object]:
        inputs = [self.inputs(shape, i) for i in range(sets)]
        out = self.torch.empty(shape.sequences * shape.rows, shape.context, device="cuda")
        scalars = {"page_entries": PAGE, "positions": shape.context, "rows_together": shape.together}
        native = self.native("indexer.dense")
        return lambda i: native(self.module, inputs[i], {"out": out}, scalars)

    def candidates(self, shape: Shape, sets: int) -> Callable[[int], object]:
        torch = self.torch
        inputs = [self.inputs(shape, i) for i in range(sets)]
        for one in inputs:
            pick = torch.rand(shape.sequences * shape.rows, shape.context // 8, device="cuda")
            one["candidates"] = pick.topk(BLOCKS, sorted=False).indices.int().sort().values.contiguous()
        out = torch.empty(shape.sequences * shape.rows, BLOCKS * 8, device="cuda")
        native = self.native("indexer.candidates")
        return lambda i: native(self.module, inputs[i], {"out": out}, {"page_entries": PAGE})


class Peer:
    """The paged and the contiguous logits of sgl_deep_gemm, or None in place of times if it is not installed."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.torch = bench, bench.torch
        self.begun = time.monotonic()
        try:
            self.gemm: Any = importlib.import_module("deep_gemm")
        except Exception as error:
            print("not measured: sgl_deep_gemm: %s" % (str(error).splitlines() or [type(error).__name__])[0])
            self.gemm = None
            return
        torch = self.torch
        self.pages = torch.empty(POOL // PEER_PAGE, PEER_PAGE, 1, 132, dtype=torch.uint8, device="cuda")
        flat = self.pages.view(POOL // PEER_PAGE, PEER_PAGE * 132)
        step = 8192
        for start in range(0, POOL // PEER_PAGE, step):
            codes = torch.randn(step, PEER_PAGE * 128, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
            flat[start : start + step, : PEER_PAGE * 128] = codes
            scales = torch.rand(step, PEER_PAGE, device="cuda") + 0.5
            flat[start : start + step, PEER_PAGE * 128 :] = scales.view(torch.uint8)

    def ready(self) -> bool:
        """Whether there is a peer and time for it."""
        late = self.gemm is not None and time.monotonic() - self.begun > PATIENCE_S
        if late:
            print("not measured: %s: no time left" % PEER_FORM)
        return self.gemm is not None and not late

    def paged(self, shape: Shape, sets: int) -> float | None:
        """Microseconds of one call for 1 or 2 rows a sequence, of as many calls as needed for more."""
        if not self.ready():
            return None
        torch, gemm = self.torch, self.gemm
        rows = min(shape.rows, 2)
        per = shape.context // PEER_PAGE
        q = torch.randn(shape.sequences, rows, 32, 128, device="cuda").to(torch.float8_e4m3fn)
        weights = torch.randn(shape.sequences * rows, 32, device="cuda")
        order = torch.randperm(POOL // PEER_PAGE, device="cuda").int()
        tables = [
            order[i * shape.sequences * per : (i + 1) * shape.sequences * per].view(shape.sequences, per).contiguous()
            for i in range(sets)
        ]
        failures = []
        for width in (None, rows):  # lengths per sequence, or per row: versions differ
            size = (shape.sequences,) if width is None else (shape.sequences, rows)
            lengths = torch.full(size, shape.context, device="cuda", dtype=torch.int32)
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            try:
                plan = gemm.get_paged_mqa_logits_metadata(lengths, PEER_PAGE, sms)

                def work(
                    i: int, lengths: Any = lengths, plan: Any = plan, calls: int = -(-shape.rows // rows)
                ) -> object:
                    for _ in range(calls):
                        gemm.fp8_paged_mqa_logits(
                            q, self.pages, weights, lengths, tables[i], plan, shape.context, False
                        )
                    return None

                return self.bench.time_us(work, sets)
            except Exception as error:
                failures.append((str(error).splitlines() or [type(error).__name__])[0])
        print("not measured: %s: %s" % (PEER_FORM, "; ".join(failures)))
        return None

    def contiguous(self, rows: int, context: int) -> float | None:
        if not self.ready():
            return None
        torch, gemm = self.torch, self.gemm
        q = torch.randn(rows, 32, 128, device="cuda").to(torch.float8_e4m3fn)
        keys = torch.randn(context, 128, device="cuda").to(torch.float8_e4m3fn)
        scales, weights = torch.rand(context, device="cuda") + 0.5, torch.randn(rows, 32, device="cuda")
        start = torch.zeros(rows, device="cuda", dtype=torch.int32)
        end = torch.arange(context - rows + 1, context + 1, device="cuda", dtype=torch.int32)
        try:
            return self.bench.time_us(lambda _: gemm.fp8_mqa_logits(q, (keys, scales), weights, start, end))
        except Exception as error:
            print("not measured: %s: %s" % (PEER_FORM, (str(error).splitlines() or [type(error).__name__])[0]))
            return None


def agree(bench: Bench, ours: Ours) -> None:
    """Rows alone and in a batch, candidates and dense: the same bits. Raises where they differ."""
    torch = bench.torch
    shape = Shape(5, 6, 4096, 6)
    inputs = ours.inputs(shape, 0)
    dense, alone = (ours.native("indexer.dense") for _ in range(2))
    whole = torch.full((30, 4096), float("nan"), device="cuda")
    scalars = {"page_entries": PAGE, "positions": 4096, "rows_together": 6}
    dense(bench.module, inputs, {"out": whole}, scalars)
    per_row = ("query", "query_scale", "weights", "sequence", "visible")
    for row in (0, 7, 29):
        single = {**inputs, **{name: inputs[name][row : row + 1].clone() for name in per_row}}
        out = torch.full((1, 4096), float("nan"), device="cuda")
        alone(bench.module, single, {"out": out}, {**scalars, "rows_together": 1})
        if not torch.equal(out.view(torch.int32), whole[row : row + 1].view(torch.int32)):
            raise SystemExit("row %d differs alone and in a batch" % row)
    blocks = torch.stack([torch.randperm(512, device="cuda")[:100] for _ in range(30)]).int()
    out = torch.full((30, 800), float("nan"), device="cuda")
    few = ours.native("indexer.candidates")
    few(bench.module, {**inputs, "candidates": blocks}, {"out": out}, {"page_entries": PAGE})
    places = (blocks.long()[..., None] * 8 + torch.arange(8, device="cuda")).flatten(1)
    if not torch.equal(out.view(torch.int32), whole.gather(1, places).view(torch.int32)):
        raise SystemExit("candidates differ from dense scores")
    print("rows alone and in a batch, candidates and dense: the same bits")


def sets_for(shape: Shape) -> int:
    """How many sets of inputs rotate."""
    each = shape.sequences * shape.context * 68
    return max(1, min(8, ROTATE // each, POOL // (shape.sequences * shape.context)))


def dense_row(bench: Bench, ours: Ours, shape: Shape, theirs: float | None, floor: float | None) -> Row:
    """One dense case. A peer's call has at most two rows of a sequence; more are so many calls."""
    places = shape.sequences * shape.rows * shape.context
    sets = sets_for(shape)
    bound = bench.bound_us(read=shape.sequences * shape.context * 68 + places * 4, flop=places * 8192.0, kind="fp8")
    us = bench.time_us(ours.dense(shape, sets), sets)
    paged = shape.sequences > 1
    name = PEER_FORM + (", %d calls of 2 rows" % (shape.rows // 2) if paged and shape.rows > 2 else "")
    case = "dense %d x %d rows, %d keys" % (shape.sequences, shape.rows, shape.context)
    return Row(case, us, bound, name, theirs, "parity", None if theirs is None else us <= theirs, FORM, floor)


def decode_rows(bench: Bench, ours: Ours, peer: Peer) -> Iterator[Row]:
    """One row of each sequence: all entries, then 2048 blocks of 8 of the longest context."""
    for context, floor in ((8192, None), (CONTEXT, 0.48)):
        shape = Shape(SEQUENCES, 1, context)
        theirs = peer.paged(shape, sets_for(shape))
        row = dense_row(bench, ours, shape, theirs, floor)
        yield row
    for rows in (1, 6):
        few = Shape(SEQUENCES, rows, CONTEXT)
        places, sets = SEQUENCES * rows * BLOCKS * 8, 4 if rows == 1 else 1
        bound = bench.bound_us(read=places * 72, flop=places * 8192.0, kind="fp8")
        us = bench.time_us(ours.candidates(few, sets), sets)
        label = "candidates 64 x %d rows, 2048 of %d blocks" % (rows, CONTEXT // 8)
        goal = "%gx its dense" % GOAL if rows == 1 else ""
        met = None if theirs is None or rows > 1 else theirs >= GOAL * us
        floor = 0.30 if rows == 1 else 0.45
        yield Row(label, us, bound, PEER_FORM + ", dense 64 x 1", theirs, goal, met, FORM, floor)
        if rows == 1:
            yield Row(label, us, bound, "our own dense 64 x 1", row.us, "", None, FORM)


def shared_rows(bench: Bench, ours: Ours, peer: Peer) -> Iterator[Row]:
    """Rows that share their keys: drafts to verify, and a chunk of a prompt."""
    for rows, floor in ((2, 0.29), (6, 0.29)):
        shape = Shape(SEQUENCES, rows, CONTEXT, rows)
        yield dense_row(bench, ours, shape, peer.paged(shape, 1), floor)
    chunk = Shape(1, 2048, 32768, 8)
    yield dense_row(bench, ours, chunk, peer.contiguous(chunk.rows, chunk.context), 0.28)


def torch_row(bench: Bench, ours: Ours) -> Row:
    """A chain of torch operations on keys that are bf16 already and contiguous."""
    torch = bench.torch
    shape = Shape(SEQUENCES, 1, 32768)
    q = torch.randn(SEQUENCES, 32, 128, device="cuda", dtype=torch.bfloat16)
    keys = torch.randn(SEQUENCES, 32768, 128, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(SEQUENCES, 1, 32, device="cuda", dtype=torch.bfloat16)
    theirs = bench.time_us(lambda _: torch.bmm(weights, torch.bmm(q, keys.transpose(1, 2)).relu_()))
    us = bench.time_us(ours.dense(shape, 1))
    return Row("dense 64 x 1 rows, 32768 keys", us, None, "torch bmm, relu, bmm on bf16 keys", theirs, "", None, FORM)


def measure(bench: Bench) -> Iterator[Row]:
    ours = Ours(bench)
    agree(bench, ours)
    peer = Peer(bench)
    yield from decode_rows(bench, ours, peer)
    yield from shared_rows(bench, ours, peer)
    yield torch_row(bench, ours)


if __name__ == "__main__":
    sys.exit(gpu_timing.main(__doc__, measure, ("indexer.dense", "indexer.candidates")))
