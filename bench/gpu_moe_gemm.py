"""The routed experts (moe_gemm.w13, moe_gemm.w2) on the GPU that is here, against their floor and Humming.

    python bench/gpu_moe_gemm.py [--library FILE] [--check] [--json FILE]

One rank's share of the release: 48 experts, w13 4608 x 5120, w2 5120 x 2304, MXFP4 weights, FP8 activations with a
power-of-two scale per 32 channels; as many rows for every expert. Ours is three launches: FP8 rows to bf16, which holds
them exactly, w13 with SwiGLU, routing weight and FP8 rounding inside, and w2. The peer is Humming's two products alone,
in the same activation format, and once with one scale per token, which costs ours nothing else (if it is installed).
The floor is the larger of bytes moved over the read ceiling and FLOP over the sustained FP8 rate of the same process.
Before anything is timed, both tiles are compared bit for bit with each other and with single rows of the same input,
on ragged experts, and with products in fp64.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpu_timing import Bench, Row, main

EXPERTS, WIDTH, CHANNELS = 48, 5120, 2304
BYTE_GOAL = 1.25
# Rows per expert: times Humming (None: the byte goal holds instead), and the share of the floor that the gate asks for.
GOALS: dict[int, tuple[float | None, float]] = {
    64: (1.3, 0.40),
    128: (1.4, 0.40),
    1024: (1.5, 0.45),
    1: (None, 0.65),
    4: (None, 0.65),
    16: (None, 0.60),
}
TOKEN_GOALS = {64: 1.15, 128: 1.15, 1: 1.0, 4: 1.0}  # times Humming with one scale per token
PEER_SECONDS = 60.0  # of this process, after which no further peer is compiled
LIMIT = 10.0
FORM, TOKEN_FORM = "scale per 32", "scale per token"

Tensors = dict[str, Any]
Work = Callable[[int], object]


def weights(bench: Bench, experts: int, seed: int) -> tuple[Tensors, Tensors, Tensors]:
    """Packed w13 and w2, and the release's tensors: random codes, scales within four binades."""
    from deepinfer.engine.ops.moe_packing import pack

    torch = bench.torch
    generator = torch.Generator("cuda").manual_seed(seed)
    release: Tensors = {}
    for name, rows, columns in (("w13", 2 * CHANNELS, WIDTH), ("w2", WIDTH, CHANNELS)):
        shape = (experts, rows, columns)
        release[name] = torch.randint(
            0, 256, (*shape[:2], columns // 2), generator=generator, dtype=torch.uint8, device="cuda"
        )
        release[name + "_scale"] = torch.randint(
            117, 122, (*shape[:2], columns // 32), generator=generator, dtype=torch.uint8, device="cuda"
        )
    packed = [pack(release[name], release[name + "_scale"], gated=name == "w13") for name in ("w13", "w2")]
    first, second = ({"weight": one.weight, "row_factor": one.row_factor} for one in packed)
    return first, second, release


def activations(bench: Bench, counts: list[int], seed: int) -> Tensors:
    """Quantized normal rows sorted by expert, routing weights, and room for what comes out."""
    from deepinfer.engine.ops.moe_gemm import room
    from deepinfer.engine.ops.quantize_rows import fp8_32

    torch = bench.torch
    generator = torch.Generator("cuda").manual_seed(seed)
    rows = sum(counts)
    codes, scale = fp8_32(torch.randn(rows, WIDTH, generator=generator, device="cuda") * 2)
    return {
        **room("cuda"),
        "codes": codes,
        "scale": scale,
        "x": torch.full((rows, WIDTH), float("nan"), dtype=torch.bfloat16, device="cuda"),
        "offsets": torch.tensor([0, *counts], device="cuda").cumsum(0).int(),
        "routing": torch.rand(rows, generator=generator, device="cuda") * 0.5 + 0.1,
        "h": torch.full((rows, CHANNELS), float("nan"), dtype=torch.bfloat16, device="cuda"),
        "out": torch.full((rows, WIDTH), float("nan"), dtype=torch.bfloat16, device="cuda"),
    }


def widen(bench: Bench, given: Tensors) -> None:
    """FP8 rows as bf16, exactly."""
    from deepinfer.engine.ops.launch import launch

    rows, columns = given["codes"].shape
    launch(bench.module, "dequant_fp8_block", given["codes"], given["scale"], given["x"], 0, rows, columns, 1, None)


def w13(bench: Bench, given: Tensors, packed: Tensors, tile: int = 0) -> None:
    """One launch of gate and up projections with what follows them."""
    from deepinfer.engine.ops.launch import launch

    tensors = [given[name] if name in given else packed[name] for name in ("x", "offsets", "weight", "row_factor")]
    tensors += [given[name] for name in ("routing", "h", "sums", "flags")]
    sizes = (given["x"].shape[0], packed["weight"].shape[0], WIDTH, CHANNELS, given["flags"].shape[0], tile)
    launch(bench.module, "moe_gemm_w13", *tensors, *sizes, LIMIT)


def w2(bench: Bench, given: Tensors, packed: Tensors, tile: int = 0) -> None:
    """One launch of the down projection."""
    from deepinfer.engine.ops.launch import launch

    tensors = [given["h"], given["offsets"], packed["weight"], packed["row_factor"]]
    tensors += [given[name] for name in ("out", "sums", "flags")]
    sizes = (given["x"].shape[0], packed["weight"].shape[0], CHANNELS, WIDTH, given["flags"].shape[0], tile)
    launch(bench.module, "moe_gemm_w2", *tensors, *sizes)


def products(bench: Bench, given: Tensors, first: Tensors, second: Tensors, tile: int = 0) -> None:
    """The three launches of a layer."""
    widen(bench, given)
    w13(bench, given, first, tile)
    w2(bench, given, second, tile)


def check_bits(bench: Bench, counts: list[int], seed: int) -> None:
    """Tiles against each other and rows alone, bit for bit; then against fp64. Raises SystemExit on a difference."""
    torch = bench.torch
    first, second, _ = weights(bench, len(counts), seed)
    found = []
    for tile in (64, 128):
        given = activations(bench, counts, seed)
        products(bench, given, first, second, tile)
        found.append(given)
    case = "rows %s" % counts
    for name in ("h", "out"):
        if not torch.equal(found[0][name], found[1][name]):
            raise SystemExit("DIFFERS: %s of tiles 64 and 128, %s" % (name, case))
    if sum(counts) == 0:
        return
    for row in {0, sum(counts) // 2, sum(counts) - 1}:
        alone = activations(bench, counts, seed)
        for name in ("codes", "scale", "x", "routing", "h", "out"):
            alone[name] = alone[name][row : row + 1].clone()
        alone["offsets"] = (alone["offsets"] > row).int()
        products(bench, alone, first, second)
        for name in ("h", "out"):
            if not torch.equal(alone[name], found[0][name][row : row + 1]):
                raise SystemExit("DIFFERS: %s of row %d alone, %s" % (name, row, case))
    check_values(found[0], first, second, case)


def check_values(given: Tensors, first: Tensors, second: Tensors, case: str) -> None:
    """What was found against products in fp64 of the codes."""
    from deepinfer.engine.ops import moe_gemm
    from deepinfer.engine.ops.dequant import fp8_reference

    scalars = {"channels": CHANNELS, "features": WIDTH, "limit": LIMIT, "tile": 0}
    exact = fp8_reference({"weight": given["codes"], "scale": given["scale"]}, {"block_rows": 1})["out"]
    hidden = moe_gemm.w13_reference({**given, **first, "x": exact}, scalars)["h"]
    out = moe_gemm.w2_reference({**given, **second, "x": given["h"]}, scalars)["out"]
    pairs = ((given["h"], hidden), (given["out"], out))
    errors: list[float] = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]
    print("%-60s error of h %.2e, of out %.2e" % (case[:60], errors[0], errors[1]), flush=True)
    if not errors[0] < 1e-2 or not errors[1] < 3e-3:
        raise SystemExit("DIFFERS from fp64: %s" % case)


class Humming:
    """Humming's W4A8 products over the same weights; raises ImportError without it.

    ``group``: channels that share an activation scale, 0 for one per token.
    """

    def __init__(self, bench: Bench, release: Tensors, group: int) -> None:
        from humming.layer import HummingLayer

        self.bench, self.release, self.group = bench, release, group
        self.layers = {}
        for name in ("w13", "w2"):
            experts, rows, half = release[name].shape
            layer = HummingLayer(
                shape_n=rows,
                shape_k=2 * half,
                num_experts=experts,
                weight_config={"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"},
                input_config={"dtype": "float8e4m3", "group_size": group},
                torch_dtype=bench.torch.bfloat16,
            ).cuda()
            scales = release[name + "_scale"].view(bench.torch.float8_e8m0fnu)
            layer.load_from_tensors({"weight": release[name].view(bench.torch.int32), "weight_scale": scales})
            layer.transform()
            self.layers[name] = layer

    def work(self, given: Tensors) -> Work | None:
        """Both products on rows of this shape; None where a result is off."""
        torch, layout = self.bench.torch, given["offsets"].long()
        gate_up = torch.empty(given["x"].shape[0], 2 * CHANNELS, dtype=torch.bfloat16, device="cuda")
        first = self._call("w13", given["x"], gate_up, layout)
        second = self._call("w2", given["h"], torch.empty_like(given["out"]), layout)
        if first is None or second is None:
            return None
        return lambda _: (first(), second())

    def _call(self, name: str, rows: Any, out: Any, layout: Any) -> Callable[[], object] | None:
        from deepinfer.engine.ops.dequant import e4m3_values, fp4_reference
        from deepinfer.engine.ops.quantize_rows import fp8_32

        torch = self.bench.torch
        codes, bytes_of = fp8_32(rows)
        scale = torch.exp2(bytes_of.float() - 127)
        if not self.group:
            scale = scale.amax(1, keepdim=True)  # any: the codes stay

        def forward() -> object:
            return self.layers[name](
                codes.view(torch.float8_e4m3fn),
                outputs=out,
                input_scale=scale,
                expert_layout=layout,
                compute_config={"gemm_type": "grouped_contiguous"},
            )

        forward()
        weight = {"weight": self.release[name][0], "scale": self.release[name + "_scale"][0]}
        wide = scale[:1].double().repeat_interleave(codes.shape[1] // scale.shape[1], 1)
        wanted = e4m3_values().to(codes.device)[codes[:1].long()] * wide @ fp4_reference(weight, {})["out"].T
        error = float((out[:1].double() - wanted).norm() / wanted.norm())
        if error < 1e-2:
            return forward
        print("Humming's %s is off by %.2e: not a peer" % (name, error))
        return None


def peer_of(bench: Bench, release: Tensors, group: int) -> Humming | None:
    """The peer, if it is installed and works here."""
    try:
        return Humming(bench, release, group)
    except Exception as refusal:
        print("Humming is not measured: %s" % str(refusal)[:200])
        return None


def floor_us(bench: Bench, rows: int) -> float:
    """Weights, activations read and written, hidden rows written and read; two products."""
    total = EXPERTS * rows
    weight = EXPERTS * 3 * CHANNELS * WIDTH * 4.25 / 8
    moved = weight + total * (WIDTH * 33 / 32 + 2 * CHANNELS * 33 / 32 + 2 * WIDTH)
    return bench.bound_us(read=moved, flop=6.0 * total * CHANNELS * WIDTH, kind="fp8")


def verdict(ours: float, bound: float, other: float | None, goal: float | None) -> bool | None:
    """Whether the goal is met; None where its peer was not measured."""
    if goal is None:
        return ours <= BYTE_GOAL * bound
    return None if other is None else other / ours >= goal


class Peers:
    """Humming in both formats; a shape is measured while there is time to compile for it."""

    def __init__(self, bench: Bench, release: Tensors) -> None:
        self.bench, self.began = bench, time.monotonic()
        self.found = {group: peer_of(bench, release, group) for group in (32, 0)}

    def time_us(self, group: int, given: Tensors) -> float | None:
        """Microseconds of both products."""
        peer = self.found[group]
        if peer is None or time.monotonic() - self.began > PEER_SECONDS:
            return None
        work = peer.work(given)
        return None if work is None else self.bench.time_us(work)


def measure(bench: Bench) -> Iterator[Row]:
    """Balanced rows per expert, and one routing drawn at random."""
    first, second, release = weights(bench, EXPERTS, 1)
    peers = Peers(bench, release)
    for rows, (goal, share) in GOALS.items():
        given = activations(bench, [rows] * EXPERTS, rows)
        products(bench, given, first, second)
        ours = bench.time_us(lambda _, given=given: products(bench, given, first, second))  # type: ignore[misc]
        bound = floor_us(bench, rows)
        case = "w13 + w2, %d rows per expert" % rows
        other = peers.time_us(32, given)
        words = "<= %.2fx bound" % BYTE_GOAL if goal is None else ">= %.1fx Humming" % goal
        met = verdict(ours, bound, other, goal)
        yield Row(case, ours, bound, "" if other is None else "Humming W4A8", other, words, met, FORM, share)
        if rows in TOKEN_GOALS:
            other, goal = peers.time_us(0, given), TOKEN_GOALS[rows]
            words, met = ">= %.2fx Humming" % goal, verdict(ours, bound, other, goal)
            yield Row(case, ours, bound, "" if other is None else "Humming W4A8", other, words, met, TOKEN_FORM)
        spent = bench.time_us(lambda _, given=given: widen(bench, given))  # type: ignore[misc]
        yield Row("  of it FP8 rows to bf16", spent, form=FORM)
    generator = bench.torch.Generator().manual_seed(5)
    draw = bench.torch.randint(0, EXPERTS, (EXPERTS * 16,), generator=generator)
    counts = bench.torch.bincount(draw, minlength=EXPERTS).tolist()
    given = activations(bench, counts, 7)
    ours = bench.time_us(lambda _: products(bench, given, first, second))
    yield Row("w13 + w2, 16 rows on average, random", ours, floor_us(bench, 16), form=FORM)


def checked(bench: Bench) -> Iterator[Row]:
    """Bits and errors first."""
    for counts in ([1, 0, 7], [16, 33, 64, 129]):
        check_bits(bench, counts, sum(counts))
    yield from measure(bench)


if __name__ == "__main__":
    sys.exit(main(__doc__, checked, ("moe_gemm.w13", "moe_gemm.w2", "moe_gemm.combine")))
