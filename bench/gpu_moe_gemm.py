"""The routed experts (moe_gemm.w13, moe_gemm.w2) on the GPU that is here, against their floor and Humming.

    python bench/gpu_moe_gemm.py [--library FILE] [--check] [--json FILE]

One rank's share of the release: 48 experts, w13 4608 x 5120, w2 5120 x 2304, MXFP4 weights, FP8 activations with a
power-of-two scale per 32 channels; as many rows for every expert. Ours is both launches with SwiGLU, routing weight and
FP8 quantisation inside; the peer is Humming's two products alone, in the same activation format (if it is installed).
The floor is the larger of bytes moved over the read ceiling and FLOP over the sustained FP8 rate of the same process.
Before anything is timed, both tiles are compared bit for bit with each other and with single rows of the same input,
on ragged experts, and with products in fp64.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpu_timing import Bench, Row, main

EXPERTS, WIDTH, CHANNELS = 48, 5120, 2304
BYTE_GOAL = 1.25
# Rows per expert: times Humming (None: the byte goal holds instead), and the share of the floor that the gate asks for.
GOALS: dict[int, tuple[float | None, float]] = {
    64: (1.3, 0.30),
    128: (1.4, 0.30),
    1024: (1.5, 0.33),
    1: (None, 0.65),
    4: (None, 0.65),
    16: (None, 0.55),
}
PEER_SECONDS = 20.0  # of this process, after which no further peer is compiled
LIMIT = 10.0
FORM = "scale per 32"

Tensors = dict[str, Any]
Work = Callable[[int], object]


def weights(bench: Bench, experts: int, seed: int) -> tuple[Tensors, Tensors, Tensors]:
    """Packed w13 and w2, and the release's tensors: random codes, scales within four binades."""
    from deepinfer.engine.ops.moe_gemm import pack

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
    first, second = ({"weight": one.weight, "row_factor": one.row_factor, "folded": one.folded} for one in packed)
    return first, second, release


def activations(bench: Bench, counts: list[int], seed: int) -> Tensors:
    """Quantized normal rows sorted by expert, routing weights, and room for what comes out."""
    from deepinfer.engine.ops.moe_gemm import quantize

    torch = bench.torch
    generator = torch.Generator("cuda").manual_seed(seed)
    rows = sum(counts)
    codes, scale = quantize(torch.randn(rows, WIDTH, generator=generator, device="cuda") * 2)
    return {
        "x": codes,
        "x_scale": scale,
        "offsets": torch.tensor([0, *counts], device="cuda").cumsum(0).int(),
        "routing": torch.rand(rows, generator=generator, device="cuda") * 0.5 + 0.1,
        "h": torch.full((rows, CHANNELS), 0x7F, dtype=torch.uint8, device="cuda"),
        "h_scale": torch.full((rows, CHANNELS // 32), 0xFF, dtype=torch.uint8, device="cuda"),
        "out": torch.full((rows, WIDTH), float("nan"), dtype=torch.bfloat16, device="cuda"),
    }


def w13(bench: Bench, given: Tensors, packed: Tensors, tile: int = 0) -> None:
    """One launch of gate and up projections with what follows them."""
    from deepinfer.engine.ops.launch import launch

    tensors = [given[name] for name in ("x", "x_scale", "offsets")]
    tensors += [packed["weight"], packed["row_factor"], given["routing"], given["h"], given["h_scale"]]
    sizes = (given["x"].shape[0], packed["weight"].shape[0], WIDTH, CHANNELS, int(packed["folded"]), tile)
    launch(bench.module, "moe_gemm_w13", *tensors, *sizes, LIMIT)


def w2(bench: Bench, given: Tensors, packed: Tensors, tile: int = 0) -> None:
    """One launch of the down projection."""
    from deepinfer.engine.ops.launch import launch

    tensors = [given["h"], given["h_scale"], given["offsets"], packed["weight"], packed["row_factor"], given["out"]]
    sizes = (given["x"].shape[0], packed["weight"].shape[0], CHANNELS, WIDTH, int(packed["folded"]), tile)
    launch(bench.module, "moe_gemm_w2", *tensors, *sizes)


def both(bench: Bench, given: Tensors, first: Tensors, second: Tensors, tile: int = 0) -> None:
    """The two launches of a layer."""
    w13(bench, given, first, tile)
    w2(bench, given, second, tile)


def check_bits(bench: Bench, counts: list[int], seed: int) -> None:
    """Tiles against each other and rows alone, bit for bit; then against fp64. Raises SystemExit on a difference."""
    from deepinfer.engine.ops import moe_gemm
    from deepinfer.engine.ops.dequant import fp8_reference

    torch = bench.torch
    first, second, _ = weights(bench, len(counts), seed)
    found = []
    for tile in (32, 128):
        given = activations(bench, counts, seed)
        both(bench, given, first, second, tile)
        found.append(given)
    case = "rows %s" % counts
    for name in ("h", "h_scale", "out"):
        if not torch.equal(found[0][name], found[1][name]):
            raise SystemExit("DIFFERS: %s of tiles 32 and 128, %s" % (name, case))
    if sum(counts) == 0:
        return
    for row in {0, sum(counts) // 2, sum(counts) - 1}:
        alone = activations(bench, counts, seed)
        for name in ("x", "x_scale", "routing", "h", "h_scale", "out"):
            alone[name] = alone[name][row : row + 1].clone()
        alone["offsets"] = (alone["offsets"] > row).int()
        both(bench, alone, first, second)
        for name in ("h", "h_scale", "out"):
            if not torch.equal(alone[name], found[0][name][row : row + 1]):
                raise SystemExit("DIFFERS: %s of row %d alone, %s" % (name, row, case))
    given = found[0]
    scalars = {"channels": CHANNELS, "features": WIDTH, "folded": int(first["folded"]), "limit": LIMIT, "tile": 0}
    wanted = moe_gemm.w13_reference({**given, **first}, scalars)
    hidden = [
        fp8_reference({"weight": one["h"], "scale": one["h_scale"]}, {"block_rows": 1})["out"]
        for one in (given, wanted)
    ]
    down = {**given, **second, "x": given["h"], "x_scale": given["h_scale"]}
    scalars["folded"] = int(second["folded"])
    exact = moe_gemm.w2_reference(down, scalars)["out"]
    pairs = (hidden, (given["out"], exact))
    errors: list[float] = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]
    print("%-60s error of h %.2e, of out %.2e" % (case[:60], errors[0], errors[1]), flush=True)
    if not errors[0] < 1e-2 or not errors[1] < 3e-3:
        raise SystemExit("DIFFERS from fp64: %s" % case)


class Humming:
    """Humming's W4A8 products, activation scales per 32, over the same weights; raises ImportError without it."""

    def __init__(self, bench: Bench, release: Tensors) -> None:
        from humming.layer import HummingLayer

        self.bench, self.release = bench, release
        self.layers = {}
        for name in ("w13", "w2"):
            experts, rows, half = release[name].shape
            layer = HummingLayer(
                shape_n=rows,
                shape_k=2 * half,
                num_experts=experts,
                weight_config={"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"},
                input_config={"dtype": "float8e4m3", "group_size": 32},
                torch_dtype=bench.torch.bfloat16,
            ).cuda()
            scales = release[name + "_scale"].view(bench.torch.float8_e8m0fnu)
            layer.load_from_tensors({"weight": release[name].view(bench.torch.int32), "weight_scale": scales})
            layer.transform()
            self.layers[name] = layer

    def work(self, given: Tensors) -> Work | None:
        """Both products on these rows; None where a result is off."""
        torch = self.bench.torch
        gate_up = torch.empty(given["x"].shape[0], 2 * CHANNELS, dtype=torch.bfloat16, device="cuda")
        first = self._call("w13", given["x"], given["x_scale"], gate_up, given["offsets"].long())
        second = self._call("w2", given["h"], given["h_scale"], torch.empty_like(given["out"]), given["offsets"].long())
        if first is None or second is None:
            return None
        return lambda _: (first(), second())

    def _call(self, name: str, codes: Any, scale: Any, out: Any, layout: Any) -> Callable[[], object] | None:
        from deepinfer.engine.ops.dequant import fp4_reference, fp8_reference

        torch = self.bench.torch
        power = torch.exp2(scale.float() - 127)

        def forward() -> object:
            return self.layers[name](
                codes.view(torch.float8_e4m3fn),
                outputs=out,
                input_scale=power,
                expert_layout=layout,
                compute_config={"gemm_type": "grouped_contiguous"},
            )

        forward()
        weight = {"weight": self.release[name][0], "scale": self.release[name + "_scale"][0]}
        rows = fp8_reference({"weight": codes[:1], "scale": scale[:1]}, {"block_rows": 1})["out"]
        wanted = rows @ fp4_reference(weight, {})["out"].T
        error = float((out[:1].double() - wanted).norm() / wanted.norm())
        if error < 1e-2:
            return forward
        print("Humming's %s is off by %.2e: not a peer" % (name, error))
        return None


def peer_of(bench: Bench, release: Tensors) -> Humming | None:
    """The peer, if it is installed and works here."""
    try:
        return Humming(bench, release)
    except Exception as refusal:
        print("Humming is not measured: %s" % str(refusal)[:200])
        return None


def floor_us(bench: Bench, rows: int) -> float:
    """Weights, activations read and written, hidden rows written and read; two products."""
    total = EXPERTS * rows
    weight = EXPERTS * 3 * CHANNELS * WIDTH * 4.25 / 8
    moved = weight + total * (WIDTH * 33 / 32 + 2 * CHANNELS * 33 / 32 + 2 * WIDTH)
    return bench.bound_us(read=moved, flop=6.0 * total * CHANNELS * WIDTH, kind="fp8")


def _both(bench: Bench, given: Tensors, first: Tensors, second: Tensors, _: int) -> None:
    both(bench, given, first, second)


def verdict(ours: float, bound: float, other: float | None, goal: float | None) -> bool | None:
    """Whether the goal is met; None where its peer was not measured."""
    if goal is None:
        return ours <= BYTE_GOAL * bound
    return None if other is None else other / ours >= goal


def measure(bench: Bench) -> Iterator[Row]:
    """Balanced rows per expert, and one routing drawn at random."""
    began = time.monotonic()
    first, second, release = weights(bench, EXPERTS, 1)
    peer = peer_of(bench, release)
    for rows, (goal, share) in GOALS.items():
        given = activations(bench, [rows] * EXPERTS, rows)
        ours = bench.time_us(functools.partial(_both, bench, given, first, second))
        other: float | None = None
        if peer is not None and time.monotonic() - began < PEER_SECONDS:
            work = peer.work(given)
            other = None if work is None else bench.time_us(work)
        bound = floor_us(bench, rows)
        words, met = "<= %.2fx bound" % BYTE_GOAL, verdict(ours, bound, other, goal)
        if goal is not None:
            words = ">= %.1fx Humming" % goal
        name = "" if other is None else "Humming W4A8, per 32"
        yield Row("w13 + w2, %d rows per expert" % rows, ours, bound, name, other, words, met, FORM, share)
    generator = bench.torch.Generator().manual_seed(5)
    draw = bench.torch.randint(0, EXPERTS, (EXPERTS * 16,), generator=generator)
    counts = bench.torch.bincount(draw, minlength=EXPERTS).tolist()
    given = activations(bench, counts, 7)
    ours = bench.time_us(functools.partial(_both, bench, given, first, second))
    yield Row("w13 + w2, 16 rows on average, random", ours, floor_us(bench, 16), form=FORM)


def checked(bench: Bench) -> Iterator[Row]:
    """Bits and errors first."""
    for counts in ([1, 0, 7], [16, 33, 64, 129]):
        check_bits(bench, counts, sum(counts))
    yield from measure(bench)


if __name__ == "__main__":
    sys.exit(main(__doc__, checked, ("moe_gemm.w13", "moe_gemm.w2", "moe_gemm.combine")))
