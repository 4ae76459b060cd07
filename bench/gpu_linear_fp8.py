"""The FP8 linear layer in 32 x 32 blocks (linear.fp8) on the GPU that is here, against its floor and its peers.

    python bench/gpu_linear_fp8.py [--library FILE] [--check] [--json FILE]

Ends within 40 s: peers and shapes that no time is left for are left out. Operands are in the release's format: E4M3
with a power-of-two scale per 32 x 32 block of weights and per 32 channels of a row. Before anything is timed, every
tile is compared bit for bit with the others and with single rows of the same input, and with an fp64 product. The floor
is the larger of bytes moved over the read ceiling and FLOP over the sustained FP8 rate, both measured in the same
process. Peers: Humming W8A8 with a scale per 32 on both sides (the 32 x 32 scales written out per row; if installed),
cuBLAS bf16 on dequantized weights, and cuBLAS FP8 with one scale per row, which is another and easier format.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpu_timing
from gpu_timing import Bench, Row

GOAL = 1.3  # times the best peer of the same format
GOAL_SHAPE = (8192, 4096, 1)
# Rows; the share of the floor's speed that the gate asks for; tiles to compare, as plans.
GOAL_ROWS = (
    (16, 0.48, (1, 2, 3)),
    (64, 0.38, (2, 3, 4)),
    (256, 0.35, (3, 4, 5)),
    (1024, 0.36, (4, 5)),
    (4096, 0.38, (4, 5)),
)
OTHER_ROWS = (16, 64, 4096)
PEERS_S, OTHERS_S = 18.0, 27.0  # of a run: after that no peer is prepared, no further shape begun
# Outputs, inputs per group, groups: the release's projections.
SHAPES = (
    ("wq_a", 1280, 5120, 1),
    ("wq_b", 32768, 1280, 1),
    ("wkv", 512, 5120, 1),
    ("wo_a", 8192, 4096, 8),
    ("wo_b", 5120, 8192, 1),
    ("shared w13", 4608, 5120, 1),
    ("shared w2", 5120, 2304, 1),
    ("engram wkv", 25600, 6144, 1),
    ("index wq_b", 4096, 1280, 1),
)
TILE_NAMES = {1: "16 x 64", 2: "32 x 64", 3: "64 x 64", 4: "64 x 128", 5: "128 x 128"}  # by plan
PORTABLE = 6
FORM = "e4m3 / 32"
LARGEST_ERROR = 2e-4  # of fp32 output, in norm: the tensor cores' sums of 32 products
SETS_BYTES = 300e6  # together several times the L2 cache

Operands = dict[str, Any]
Work = Callable[[int], object]


def operands(torch: Any, rows: int, outputs: int, inputs: int, groups: int, seed: int) -> Operands:
    """Normal data, quantized: the scale of a block is the power of two that makes its maximum at most 448."""
    generators = [torch.Generator("cuda").manual_seed(2 * seed + i) for i in range(2)]
    x = torch.randn(rows, groups * inputs, generator=generators[0], device="cuda")
    w = torch.randn(outputs, inputs, generator=generators[1], device="cuda") * inputs**-0.5
    x_scale = exponents(torch, x.view(rows, -1, 32).abs().amax(2))
    w_scale = exponents(torch, w.view(outputs // 32, 32, -1, 32).abs().amax((1, 3)))
    x_wide = torch.exp2(x_scale.float() - 127).repeat_interleave(32, 1)
    w_wide = torch.exp2(w_scale.float() - 127).repeat_interleave(32, 1).repeat_interleave(32, 0)
    return {
        "x_code": (x / x_wide).to(torch.float8_e4m3fn).view(torch.uint8),
        "w_code": (w / w_wide).to(torch.float8_e4m3fn).view(torch.uint8),
        "x_scale": x_scale.to(torch.uint8),
        "w_scale": w_scale.to(torch.uint8),
    }


def exponents(torch: Any, largest: Any) -> Any:
    """Scale bytes for blocks with these maxima."""
    return (torch.log2(largest.clamp_min(1e-4) / 448.0).ceil() + 127).clamp(1, 254)


def dequantized(torch: Any, given: Operands) -> tuple[Any, Any]:
    """fp32 x and w."""
    x_wide = torch.exp2(given["x_scale"].float() - 127).repeat_interleave(32, 1)
    w_wide = torch.exp2(given["w_scale"].float() - 127).repeat_interleave(32, 1).repeat_interleave(32, 0)
    x, w = (given[name].view(torch.float8_e4m3fn).float() for name in ("x_code", "w_code"))
    return x * x_wide, w * w_wide


def call(bench: Bench, given: Operands, y: Any, groups: int, plan: int = 0) -> None:
    """One launch."""
    from deepinfer.engine.ops.launch import launch

    x, w = given["x_code"], given["w_code"]
    sizes = (x.shape[0], w.shape[0], w.shape[1], groups, int(y.dtype == bench.torch.float32))
    launch(bench.module, "linear_fp8", x, given["x_scale"], w, given["w_scale"], y, *sizes, plan)


def check_bits(bench: Bench, rows: int, outputs: int, inputs: int, groups: int, seed: int) -> float:
    """The relative error against fp64; raises if two tiles, or a row alone and among others, differ in a bit."""
    torch = bench.torch
    given = operands(torch, rows, outputs, inputs, groups, seed)
    case = "%d rows %d x %d, groups %d, seed %d" % (rows, outputs, inputs, groups, seed)
    found = {}
    for plan in (0, *TILE_NAMES, PORTABLE):
        y = torch.full((rows, outputs), float("nan"), device="cuda")
        call(bench, given, y, groups, plan)
        found[plan] = y
        if plan in TILE_NAMES and not torch.equal(y, found[0]):
            raise SystemExit("DIFFERS: plan %d against the shape's own tile: %s" % (plan, case))
    for first, count in ((0, 1), (rows // 2, 1), (rows // 3, min(rows - rows // 3, 17))):
        part = {name: given[name][first : first + count].clone() for name in ("x_code", "x_scale")}
        y = torch.full((count, outputs), float("nan"), device="cuda")
        call(bench, {**given, **part}, y, groups)
        if not torch.equal(y, found[0][first : first + count]):
            raise SystemExit("DIFFERS: rows %d to %d alone: %s" % (first, first + count - 1, case))
    x, w = (tensor.double() for tensor in dequantized(torch, given))
    parts = zip(x.chunk(groups, 1), w.chunk(groups, 0), strict=True)
    exact = torch.cat([mine @ theirs.T for mine, theirs in parts], 1)
    error, portable = (float((found[plan].double() - exact).norm() / exact.norm()) for plan in (0, PORTABLE))
    if not error < LARGEST_ERROR:
        raise SystemExit("DIFFERS: error %.2e against fp64: %s" % (error, case))
    print("%-52s error of fp32 output %.2e, of the portable kernel %.2e" % (case, error, portable))
    return error


class Humming:
    """Humming's W8A8 with E8M0 weight scales and activation scales per 32; its layers are kept by weight."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.layers: dict[tuple[int, ...], Any] = {}

    def layer(self, key: tuple[int, ...], given: Operands) -> Any:
        """The layer of these weights. Raises ImportError where Humming is not installed."""
        from humming.layer import HummingLayer

        if key not in self.layers:
            torch, (outputs, inputs) = self.torch, given["w_code"].shape
            layer = HummingLayer(
                shape_n=outputs,
                shape_k=inputs,
                weight_config={"dtype": "float8e4m3", "group_size": 32, "scale_dtype": "float8e8m0"},
                input_config={"dtype": "float8e4m3", "group_size": 32},
                torch_dtype=torch.bfloat16,
            ).cuda()
            scales = given["w_scale"].repeat_interleave(32, 0).contiguous().view(torch.float8_e8m0fnu)
            layer.load_from_tensors({"weight": given["w_code"].view(torch.int32), "weight_scale": scales})
            layer.transform()
            self.layers[key] = layer
        return self.layers[key]

    def work(self, sets: list[Operands], y: Any) -> Work | None:
        """Calls of set ``i``; None where it is not installed, fails, or gives something else."""
        torch = self.torch
        try:
            layers = [self.layer((*given["w_code"].shape, i), given) for i, given in enumerate(sets)]
            codes = [given["x_code"].view(torch.float8_e4m3fn) for given in sets]
            factors = [torch.exp2(given["x_scale"].float() - 127) for given in sets]
            layers[0](codes[0], outputs=y, input_scale=factors[0])
        except (ImportError, RuntimeError, AssertionError) as error:
            print("no Humming: %s" % str(error).splitlines()[0])
            return None
        x, w = dequantized(torch, {name: t[:32] if name[0] == "x" else t for name, t in sets[0].items()})
        off = float((y[:32].float() - x @ w.T).norm() / (x @ w.T).norm())
        if not off < 1e-2:
            print("no Humming: its result is off by %.2e" % off)
            return None
        return lambda i: layers[i](codes[i], outputs=y, input_scale=factors[i])


def libraries(torch: Any, sets: list[Operands], y: Any) -> dict[str, Work]:
    """cuBLAS on bf16 of the same numbers, and on FP8 with one scale per row."""
    rows, outputs = y.shape
    wide = [tuple(tensor.bfloat16() for tensor in dequantized(torch, given)) for given in sets]
    ones = torch.ones(rows, 1, device="cuda"), torch.ones(1, outputs, device="cuda")
    codes = [tuple(given[name].view(torch.float8_e4m3fn) for name in ("x_code", "w_code")) for given in sets]

    def bf16(i: int) -> object:
        return torch.mm(wide[i][0], wide[i][1].T, out=y)

    def fp8(i: int) -> object:
        return torch._scaled_mm(codes[i][0], codes[i][1].T, *ones, out_dtype=torch.bfloat16, use_fast_accum=True)

    return {"cuBLAS bf16": bf16, "cuBLAS fp8, row scales": fp8}


class Table:
    """The rows, under one clock for the whole run."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.begun = time.monotonic()
        self.humming = Humming(bench.torch)

    def spent(self) -> float:
        """Seconds since the bench began."""
        return time.monotonic() - self.begun

    def prepare(self, shape: tuple[int, int, int], rows: int) -> tuple[list[Operands], Any, float]:
        """Input sets that do not fit in the cache together, an output, and the floor in microseconds."""
        torch, (outputs, inputs, groups) = self.bench.torch, shape
        moved = outputs * inputs + rows * (groups * inputs + 2 * outputs) + outputs * inputs / 1024
        count = max(2, min(10, int(SETS_BYTES / moved)))
        sets = [operands(torch, rows, outputs, inputs, groups, seed) for seed in range(count)]
        y = torch.empty(rows, outputs, dtype=torch.bfloat16, device="cuda")
        return sets, y, self.bench.bound_us(read=moved, flop=2.0 * rows * outputs * inputs, kind="fp8")

    def ours(self, sets: list[Operands], y: Any, groups: int = 1, plan: int = 0) -> float:
        """Microseconds of one call."""
        return self.bench.time_us(lambda i: call(self.bench, sets[i], y, groups, plan), len(sets))

    def goal(self, rows: int, floor: float, tiles: tuple[int, ...]) -> Iterator[Row]:
        """The goal's shape: ours beside every peer, then the tiles that the shape did not choose from."""
        sets, y, bound = self.prepare(GOAL_SHAPE, rows)
        case = "%d x %d, %d rows" % (*GOAL_SHAPE[:2], rows)
        ours = self.ours(sets, y)
        peer = self.humming.work(sets, y) if self.spent() < PEERS_S else None
        row = Row(case, ours, bound, form=FORM, goal=">= %.1fx" % GOAL, floor=floor)
        if peer is not None:
            row.baseline, row.baseline_us = "Humming W8A8 / 32", self.bench.time_us(peer, len(sets))
            row.met = row.baseline_us / ours >= GOAL
        yield row
        if self.spent() < PEERS_S:
            for label, work in libraries(self.bench.torch, sets, y).items():
                yield Row(case, ours, bound, label, self.bench.time_us(work, len(sets)), form=FORM)
        for plan in tiles:
            yield Row("%s, tile %s" % (case, TILE_NAMES[plan]), self.ours(sets, y, plan=plan), bound, form=FORM)

    def other(self, name: str, shape: tuple[int, int, int], rows: int) -> Row:
        """Another projection of the release, ours alone."""
        sets, y, bound = self.prepare(shape, rows)
        ours = self.ours(sets, y, shape[2])
        return Row("%s %d x %d, %d rows" % (name, *shape[:2], rows), ours, bound, form=FORM)


def measure(bench: Bench) -> Iterator[Row]:
    """Bits first, then the goal's shape, then the release's others."""
    table = Table(bench)
    for number, (rows, outputs, inputs, groups) in enumerate(
        ((1, 512, 5120, 1), (37, 1280, 5120, 1), (200, 4096, 1024, 8), (300, 2048, 2304, 1), (77, 96, 224, 3))
    ):
        check_bits(bench, rows, outputs, inputs, groups, number)
    for rows, floor, tiles in GOAL_ROWS:
        yield from table.goal(rows, floor, tiles)
        bench.torch.cuda.empty_cache()
    for name, outputs, inputs, groups in SHAPES:
        for rows in OTHER_ROWS:
            if table.spent() < OTHERS_S:
                yield table.other(name, (outputs, inputs, groups), rows)


if __name__ == "__main__":
    sys.exit(gpu_timing.main(__doc__, measure, ["linear.fp8"]))
