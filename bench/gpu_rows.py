"""The row kernels of a layer: quantizers, queries, rows of the caches, compression of pairs.

    python bench/gpu_rows.py [--library FILE] [--check] [--json FILE] [--only=NAME,NAME] [--compile]

Before the table, every op's rows of 2,000 tokens are compared bit for bit with those of calls that hold a part of them.
Peers are chains of torch ops that give the same packed rows, eager and compiled, and Triton kernels for the FP8 rows.
At 8,192 tokens rotating inputs sum to several times the L2 cache; at 64 they fit in it, as they do behind another op.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpu_timing

OPS = (
    "quantize_rows.fp8",
    "quantize_rows.normed_fp8",
    "rows.queries",
    "rows.index_queries",
    "rows.window",
    "rows.entry",
    "rows.index_key",
    "compressor.pair",
    "compressor.pair_entry",
)
ENTRIES = 64  # of a block of the index cache
PAIRS, EPS, WORKING_SET = 32, 1e-20, 300e6
MANY, FEW = 8192, 64
WRITE_OUT = 1 << 16  # records of a cache
FLOORS = {  # shares of the bound that the gate asks for, of rows that run well past a launch
    "quantize_rows.fp8 8192x5120": 0.75,
    "quantize_rows.normed_fp8 8192x5120": 0.72,
    "rows.queries in place 8192x64x512": 0.60,
    "rows.index_queries 8192x32x128": 0.50,
}


@dataclass
class Work:
    """One op at one shape: ``inputs`` of a call, the ``outputs`` of it, and what a row of it moves in bytes."""

    op: str
    label: str
    form: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    scalars: dict[str, Any]
    row_bytes: float
    rows: int


def _heads(torch: Any, tokens: int, heads: int, channels: int) -> dict[str, Any]:
    from deepinfer.engine.ops.rope import frequencies

    return {
        "x": torch.randn(tokens, heads, channels, device="cuda").bfloat16(),
        "positions": torch.randint(0, 1 << 20, (tokens,), device="cuda"),
        "freqs": frequencies(2 * PAIRS, 10000.0).cuda(),
    }


def _rows(torch: Any, tokens: int, channels: int, records: int) -> dict[str, Any]:
    return {
        **_heads(torch, tokens, 1, channels),
        "x": torch.randn(tokens, channels, device="cuda").bfloat16(),
        "weight": (1.0 + 0.1 * torch.randn(channels, device="cuda")).bfloat16(),
        "slots": torch.randperm(records, device="cuda")[:tokens],
    }


def _pairs(torch: Any, groups: int) -> dict[str, Any]:
    return {name: torch.randn(2 * groups, 512, device="cuda") for name in ("gates", "values")}


def _bytes(torch: Any, *shape: int) -> Any:
    return torch.full(shape, 0xA5, dtype=torch.uint8, device="cuda")


def _fp8(torch: Any, tokens: int, channels: int, normed: bool) -> Work:
    inputs: dict[str, Any] = {"x": torch.randn(tokens, channels, device="cuda").bfloat16()}
    outputs = {"codes": _bytes(torch, tokens, channels), "scales": _bytes(torch, tokens, channels // 32)}
    moved = channels * (3 + 1 / 32)
    name = "quantize_rows.fp8"
    scalars = {}
    if normed:
        inputs["weight"] = (1.0 + 0.1 * torch.randn(channels, device="cuda")).bfloat16()
        outputs["normed"] = torch.empty(tokens, channels, dtype=torch.bfloat16, device="cuda")
        moved, name, scalars = moved + 2 * channels, "quantize_rows.normed_fp8", {"eps": EPS}
    label = "%s %dx%d" % (name, tokens, channels)
    return Work(name, label, "FP8-32", inputs, outputs, scalars, moved, tokens)


def _queries(torch: Any, tokens: int) -> Work:
    moved = 64 * 64 * 2 * 2.0  # 64 channels of 64 heads, in and out
    return Work(
        "rows.queries",
        "rows.queries in place %dx64x512" % tokens,
        "bf16",
        _heads(torch, tokens, 64, 512),
        {},
        {},
        moved,
        tokens,
    )


def _index_queries(torch: Any, tokens: int) -> Work:
    outputs = {"codes": _bytes(torch, tokens, 32, 64), "scales": _bytes(torch, tokens, 32, 4)}
    moved = 32 * (256 + 68.0)
    inputs = _heads(torch, tokens, 32, 128)
    label = "rows.index_queries %dx32x128" % tokens
    return Work("rows.index_queries", label, "FP4-32", inputs, outputs, {}, moved, tokens)


def _window(torch: Any, tokens: int) -> Work:
    outputs = {"cache": _bytes(torch, WRITE_OUT, 528)}
    inputs = _rows(torch, tokens, 512, WRITE_OUT)
    label = "rows.window %dx512" % tokens
    return Work("rows.window", label, "FP8-32 528 B", inputs, outputs, {"eps": EPS}, 1024 + 528.0, tokens)


def _entry(torch: Any, tokens: int) -> Work:
    outputs = {
        "cache": _bytes(torch, WRITE_OUT, 288),
        "normed": torch.empty(tokens, 512, dtype=torch.bfloat16, device="cuda"),
    }
    inputs = _rows(torch, tokens, 512, WRITE_OUT)
    label = "rows.entry %dx512" % tokens
    return Work("rows.entry", label, "FP4-16 288 B", inputs, outputs, {"eps": EPS}, 2048 + 288.0, tokens)


def _index_key(torch: Any, tokens: int) -> Work:
    outputs = {"cache": _bytes(torch, WRITE_OUT // ENTRIES, ENTRIES * 68)}
    inputs = _rows(torch, tokens, 128, WRITE_OUT)
    scalars = {"eps": EPS, "entries": ENTRIES}
    label = "rows.index_key %dx128" % tokens
    return Work("rows.index_key", label, "FP4-32 68 B", inputs, outputs, scalars, 256 + 68.0, tokens)


def _pair(torch: Any, tokens: int) -> Work:
    outputs = {"latent": torch.empty(tokens // 2, 512, dtype=torch.bfloat16, device="cuda")}
    label = "compressor.pair %d tokens" % tokens
    inputs = _pairs(torch, tokens // 2)
    return Work("compressor.pair", label, "fp32", inputs, outputs, {}, 8192 + 1024.0, tokens // 2)


def _pair_entry(torch: Any, tokens: int) -> Work:
    work = _entry(torch, tokens // 2)
    del work.inputs["x"]
    work.inputs.update(_pairs(torch, tokens // 2))
    work.op, work.label = "compressor.pair_entry", "compressor.pair_entry %d tokens" % tokens
    work.row_bytes += 8192 - 1024
    return work


MAKERS: dict[str, Callable[[Any, int], Work]] = {
    "fp8 1280": lambda torch, tokens: _fp8(torch, tokens, 1280, False),
    "fp8 5120": lambda torch, tokens: _fp8(torch, tokens, 5120, False),
    "normed fp8 1280": lambda torch, tokens: _fp8(torch, tokens, 1280, True),
    "normed fp8 5120": lambda torch, tokens: _fp8(torch, tokens, 5120, True),
    "queries": _queries,
    "index queries": _index_queries,
    "window": _window,
    "entry": _entry,
    "index key": _index_key,
    "pair": _pair,
    "pair entry": _pair_entry,
}


def launch(bench: gpu_timing.Bench, work: Work) -> None:
    """Our kernel of ``work``."""
    from deepinfer.engine.ops.registry import load_all

    load_all()[work.op].native["cuda"](bench.module, work.inputs, work.outputs, work.scalars)


def _part(work: Work, begin: int, end: int, outputs: dict[str, Any]) -> Work:
    """Rows ``begin`` to ``end - 1`` of ``work`` as a call of their own."""
    inputs = dict(work.inputs)
    for name in ("x", "positions", "slots"):
        if name in inputs:
            inputs[name] = inputs[name][begin:end].clone()
    for name in ("gates", "values"):
        if name in inputs:
            inputs[name] = inputs[name][2 * begin : 2 * end].clone()
    return Work(work.op, work.label, work.form, inputs, outputs, work.scalars, work.row_bytes, end - begin)


def _by_row(work: Work) -> dict[str, Any]:
    """The outputs of ``work`` with one row per row of the call."""
    from deepinfer.engine.ops.compress_rows import index_records

    found = {name: tensor for name, tensor in work.outputs.items() if name != "cache"}
    cache, slots = work.outputs.get("cache"), work.inputs.get("slots")
    if cache is None or slots is None:
        return found or {"x": work.inputs["x"]}
    if work.op == "rows.index_key":
        views = index_records(cache, ENTRIES)
        return {str(i): view[slots // ENTRIES, slots % ENTRIES] for i, view in enumerate(views)}
    return {**found, "cache": cache[slots]}


def compare_parts(bench: gpu_timing.Bench, maker: Callable[[Any, int], Work]) -> bool:
    """Whether rows of calls with 1 to 600 rows are those of one call with 2,000, bit for bit."""
    torch = bench.torch
    work = maker(torch, 2000)
    original = {name: tensor.clone() for name, tensor in work.inputs.items()}
    launch(bench, work)
    whole = _by_row(work)
    same = True
    for begin, end in ((0, 1), (7, 8), (64, 128), (333, 933)):
        fresh = {
            name: torch.full_like(tensor, 0x5A)
            if name == "cache"
            else torch.full_like(tensor[: end - begin], 7 if tensor.dtype == torch.uint8 else float("nan"))
            for name, tensor in work.outputs.items()
        }
        part = _part(Work(**{**vars(work), "inputs": original}), begin, end, fresh)
        launch(bench, part)
        for name, rows in _by_row(part).items():
            same = same and bool((rows.view(torch.uint8) == whole[name][begin:end].view(torch.uint8)).all())
    return same


def peers(bench: gpu_timing.Bench, works: list[Work], compiled: Any) -> list[tuple[str, float]]:
    """(name, us) of each peer of the op at this shape."""
    from gpu_rows_peers import CHAINS

    chain = CHAINS.get(works[0].op)
    if chain is None:
        return []
    us: float = bench.time_us(lambda i: chain(works[i].inputs, works[i].outputs), len(works))
    found: list[tuple[str, float]] = [("torch eager", us)]
    if compiled is not None:
        us = bench.time_us(lambda i: compiled(works[i].inputs, works[i].outputs), len(works))
        found.append(("torch.compile", us))
    if works[0].op.startswith("quantize_rows.") and importlib.util.find_spec("triton") is not None:
        found.append(("Triton, best of 3", min(_triton(bench, works, *tile) for tile in TILES)))
    return found


TILES = ((32, 1), (32, 4), (128, 4))  # groups of 32 channels and warps of a program


def _triton(bench: gpu_timing.Bench, works: list[Work], block: int, warps: int) -> float:
    import gpu_rows_triton

    rows, channels = works[0].inputs["x"].shape
    if works[0].op == "quantize_rows.fp8":
        groups = rows * channels // 32
        grid = (-(-groups // block),)

        def plain(i: int) -> None:
            words = works[i].inputs["x"], works[i].outputs["codes"], works[i].outputs["scales"], groups
            gpu_rows_triton.fp8[grid](*words, block, num_warps=warps)

        return bench.time_us(plain, len(works))
    whole = 1 << (channels // 32 - 1).bit_length()

    def normed(i: int) -> None:
        work = works[i]
        words = work.inputs["x"], work.inputs["weight"], work.outputs["normed"], work.outputs["codes"]
        gpu_rows_triton.normed_fp8[(rows,)](*words, work.outputs["scales"], EPS, channels, whole, num_warps=warps)

    return bench.time_us(normed, len(works))


def compile_chain(torch: Any, op: str, enabled: bool) -> Any:
    """The op's chain, compiled for any number of rows, or None."""
    from gpu_rows_peers import CHAINS

    if not enabled or op not in CHAINS:
        return None
    return torch.compile(CHAINS[op], dynamic=True)


def measure(bench: gpu_timing.Bench, only: str, with_compile: bool) -> Iterator[gpu_timing.Row]:
    torch = bench.torch
    chosen = {name: maker for name, maker in MAKERS.items() if not only or name in only.split(",")}
    differing = [name for name, maker in chosen.items() if not compare_parts(bench, maker)]
    print(
        "rows of parts of a call: %s" % ("differ for " + ", ".join(differing) if differing else "the same, bit for bit")
    )
    for maker in chosen.values():
        compiled = compile_chain(torch, maker(torch, FEW).op, with_compile)
        for tokens in (MANY, FEW):
            first = maker(torch, tokens)
            count = max(2, min(32, int(WORKING_SET / (first.row_bytes * first.rows))))
            works = [first, *(maker(torch, tokens) for _ in range(count - 1))]
            us = bench.time_us(functools.partial(_launch_of, bench, works), count)
            found = peers(bench, works, compiled)
            yield _row(bench, first, us, found, differing == [])


def _launch_of(bench: gpu_timing.Bench, works: list[Work], i: int) -> None:
    launch(bench, works[i])


def _row(bench: gpu_timing.Bench, work: Work, us: float, found: list[tuple[str, float]], same: bool) -> gpu_timing.Row:
    bound = bench.bound_us(read=work.row_bytes * work.rows)
    best = min((pair[1] for pair in found), default=None)
    words = "; ".join("%s %.1f" % pair for pair in found)
    goal, met = "", None
    if bound > 10.0:
        goal, met = "80 %% of the read ceiling (%.0f %%)" % (100 * bound / us), same and bound >= 0.8 * us
    elif best is not None:
        goal, met = "faster than every peer (%.2f)" % (best / us), same and us < best
    return gpu_timing.Row(work.label, us, bound, words, best, goal, met, work.form, FLOORS.get(work.label))


def main() -> int:
    words = sys.argv[1:]
    only = next((words.pop(words.index(word)).partition("=")[2] for word in words if word.startswith("--only=")), "")
    with_compile = "--compile" in words
    sys.argv[1:] = [word for word in words if word != "--compile"]
    return gpu_timing.main(__doc__, functools.partial(measure, only=only, with_compile=with_compile), OPS)


if __name__ == "__main__":
    sys.exit(main())
