"""The routed experts on a device: MXFP4 weights times FP8 activations grouped by expert, and the sum over experts.

Activations come and go as bf16 that holds E4M3 numbers times a power of two per 32 columns: exact, and what the matrix
unit multiplies. Weights come from :func:`deepinfer.engine.ops.moe_packing.pack`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.dequant import GROUP
from deepinfer.engine.ops.draw import normal, uniform
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.moe_packing import Packed, pack, unpack
from deepinfer.engine.ops.quantizers import qdq_fp8_32
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Implementation, Scalars, Tensors


HANDED_OVER = 256 * 128  # sums of one block of the grid


def _products(inputs: Tensors, gated: bool, features: int) -> torch.Tensor:
    """fp64 [R, features]: every row times its expert's matrix; gate columns, then up columns."""
    x = inputs["x"].double()
    out = torch.zeros(x.shape[0], features, dtype=torch.float64, device=x.device)
    offsets = inputs["offsets"].tolist()
    for e, (first, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if first == end:
            continue
        matrix = unpack(inputs["weight"][e], inputs["row_factor"][e], gated=gated)[:, : x.shape[1]]
        if gated:
            matrix = torch.cat([half[: features // 2] for half in matrix.chunk(2)])
        out[first:end] = x[first:end] @ matrix[:features].T
    return out


def w13_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """Products in fp64, gate and up rounded to bf16, activation in fp32, one rounding to FP8."""
    channels, limit = int(scalars["channels"]), float(scalars["limit"])
    both = _products(inputs, True, 2 * channels).to(torch.bfloat16).float()
    gate, up = both[:, :channels].clamp_max(limit), both[:, channels:].clamp(-limit, limit)
    return {"h": qdq_fp8_32(torch.nn.functional.silu(gate) * up * inputs["routing"].float()[:, None])}


def w2_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """Products in fp64."""
    return {"out": _products(inputs, False, int(scalars["features"]))}


def combine_reference(inputs: Tensors, _: Scalars) -> Tensors:
    """fp32 sums in the order of choice, then the shared expert."""
    positions, shared = inputs["positions"].long(), inputs["shared"].float()
    total = torch.zeros_like(shared)
    for slot in range(positions.shape[1]):
        row = positions[:, slot]
        if bool((row >= 0).any()):
            part = inputs["parts"].float()[row.clamp_min(0)]
            total = torch.where(row[:, None] >= 0, total + part, total)
    return {"out": total + shared}


def random_weights(
    experts: int, rows: int, columns: int, generator: torch.Generator, *, spread: int = 4
) -> tuple[torch.Tensor, torch.Tensor]:
    """Release-format weight and scale on the CPU; scales of a row within ``spread`` binades, products of order 1."""
    weight = torch.randint(0, 256, (experts, rows, columns // 2), generator=generator, dtype=torch.uint8)
    top = 127 - round(0.5 * torch.log2(torch.tensor(float(columns))).item())
    shape = (experts, rows, columns // GROUP)
    return weight, torch.randint(top - spread, top + 1, shape, generator=generator, dtype=torch.uint8)


def _rows(counts: tuple[int, ...], columns: int, generator: torch.Generator, device: str) -> Tensors:
    """Quantized normal activations sorted by expert."""
    offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32)
    spread = torch.exp2(torch.randint(-3, 4, (sum(counts), columns // GROUP), generator=generator).float())
    x = normal((sum(counts), columns), generator, "cpu") * spread.repeat_interleave(GROUP, 1)
    return {"x": qdq_fp8_32(x).to(device, torch.bfloat16), "offsets": offsets.to(device)}


# Rows per expert, K, channels or features, binades of the scales, tile.
_CASES = (
    ((1, 0, 3), 256, 64, 4, 0),
    ((8, 9, 0, 17, 31), 128, 96, 4, 64),
    ((33, 1, 64, 65), 384, 128, 4, 128),
    ((129, 300), 256, 64, 4, 128),
    ((2, 40), 64, 32, 4, 0),
    ((5, 0, 70), 256, 64, 30, 0),
    ((7, 16), 5120, 64, 6, 0),
    ((100,), 2304, 128, 6, 0),
    (tuple(1 + e % 3 for e in range(130)), 512, 1024, 6, 0),
)


def _weights(gated: bool, experts: int, rows: int, columns: int, spread: int, generator: torch.Generator) -> Packed:
    return pack(*random_weights(experts, rows, columns, generator, spread=spread), gated=gated)


def _with_and_without_room(what: str, counts: tuple[int, ...], tile: int, case: Case) -> Iterator[Case]:
    """Without room for sums; with it too where there are many experts, whose tiles may then be cut."""
    x = case.inputs["x"]
    rows = "rows %s" % (counts,) if len(counts) < 9 else "%d experts" % len(counts)
    label = "%s, K %d, %s, tile %d" % (rows, x.shape[1], what, tile)
    yield Case(label, case.inputs, case.scalars, case.out)
    if len(counts) < 9:
        return
    more = room(str(x.device))
    sums = more.pop("sums")
    out = {**case.out, "sums": (tuple(sums.shape), sums.dtype)}
    yield Case(label + ", room for sums", {**case.inputs, **more}, case.scalars, out)


def _w13_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Experts without rows, every kind of tile, ragged ends, K of less than a chunk, scales far apart."""
    for counts, columns, channels, spread, tile in _CASES:
        packed = _weights(True, len(counts), 2 * channels, columns, spread, generator)
        rows = sum(counts)
        inputs = _rows(counts, columns, generator, device)
        inputs |= {"weight": packed.weight.to(device), "row_factor": packed.row_factor.to(device)}
        inputs["routing"] = uniform((rows,), 0.1, 1.0, generator, device)
        scalars = {"channels": channels, "tile": tile, "limit": 10.0}
        out = {"h": ((rows, channels), torch.bfloat16)}
        yield from _with_and_without_room("%d channels" % channels, counts, tile, Case("", inputs, scalars, out))


def _w2_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """The same for the down projection."""
    for counts, columns, features, spread, tile in _CASES:
        packed = _weights(False, len(counts), features, columns, spread, generator)
        inputs = _rows(counts, columns, generator, device)
        inputs |= {"weight": packed.weight.to(device), "row_factor": packed.row_factor.to(device)}
        scalars = {"features": features, "tile": tile}
        out = {"out": ((sum(counts), features), torch.bfloat16)}
        yield from _with_and_without_room("N %d" % features, counts, tile, Case("", inputs, scalars, out))


def _combine_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Tokens of which other ranks hold some or all experts; more choices than are loaded at a time."""
    for tokens, choices, width, rows in ((5, 6, 5120, 20), (33, 2, 128, 40), (3, 16, 64, 9), (4, 6, 64, 0)):
        positions = torch.randint(-1 - rows // 4, max(rows, 1), (tokens, choices), generator=generator)
        positions = positions.clamp(-1, rows - 1).int()
        inputs = {"parts": normal((rows, width), generator, device, torch.bfloat16), "positions": positions.to(device)}
        inputs["shared"] = normal((tokens, width), generator, device, torch.bfloat16)
        out = {"out": ((tokens, width), torch.bfloat16)}
        yield Case("%d tokens, %d choices of %d rows" % (tokens, choices, rows), inputs, {}, out)


def room(device: str) -> Tensors:
    """``sums`` and ``flags`` of calls that follow one another on ``device``; 17 MB for 132 multiprocessors."""
    cuda = device.startswith("cuda")
    blocks = torch.cuda.get_device_properties(device).multi_processor_count if cuda else 2
    sums = torch.empty(blocks, HANDED_OVER, dtype=torch.float32, device=device)
    return {"sums": sums, "flags": torch.zeros(blocks, 4, dtype=torch.int32, device=device)}


def _native(name: str, size: str, operands: tuple[str, ...], result: str) -> Implementation:
    def call(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        rows, k = inputs["x"].shape
        flags, sums = inputs.get("flags"), outputs.get("sums")
        sizes = (rows, inputs["weight"].shape[0], k, int(scalars[size]), 0 if flags is None else flags.shape[0])
        limits = [float(scalars["limit"])] if "limit" in scalars else []
        tensors = [inputs[key] for key in operands]
        launch(module, name, *tensors, outputs[result], sums, flags, *sizes, int(scalars["tile"]), *limits)

    return call


def _combine_native(module: ModuleType, inputs: Tensors, outputs: Tensors, _: Scalars) -> None:
    parts, positions = inputs["parts"], inputs["positions"]
    sizes = (parts.shape[0], *positions.shape, parts.shape[1])
    launch(module, "moe_combine", parts, positions, inputs["shared"], outputs["out"], *sizes)


_GROUPED = (
    Argument("x", "[R, K], E4M3 times powers of two, rows sorted by expert; K a multiple of 32", ("bfloat16",)),
    Argument("offsets", "[E + 1]: expert e has rows offsets[e] to offsets[e + 1] - 1; the last is R", ("int32",)),
)
_OPERANDS = ("x", "offsets", "weight", "row_factor")
_ROOM = (
    Argument("sums", "[B, 32768], for sums that one block hands to the next", ("float32",), "work", optional=True),
    Argument(
        "flags",
        "[B, 4], zeros before and after; of use if B is at least the number of multiprocessors",
        ("int32",),
        "inout",
        optional=True,
    ),
)
_SCALARS = {"tile": "tokens of a tile: 64 or 128; 0: by the mean"}
_SUMS = "; sums in fp32 by ascending K, whatever the number of rows"
_SOURCE = "OCP microscaling formats 1.0 (MXFP4, E8M0), OCP 8-bit floating point (E4M3FN)"

register(
    Op(
        Contract(
            "moe_gemm.w13",
            "h = fp8(routing * silu(min(g, limit)) * clamp(u, -limit, limit)), g and u = bf16(x w1), bf16(x w3)"
            + _SUMS,
            (
                *_GROUPED,
                Argument("weight", "[E, ceil(channels / 64), 2 * ceil(K / 256), 2, 4352], of pack()", ("uint8",)),
                Argument("row_factor", "[E, 2 * ceil(channels / 64), 64]", ("float32",)),
                Argument("routing", "[R]", ("float32",)),
                Argument("h", "[R, channels], E4M3 times a power of two per 32 channels", ("bfloat16",), "out"),
                *_ROOM,
            ),
            {"channels": "of the hidden layer", **_SCALARS, "limit": "of the clamps"},
            _SOURCE + "; GLU variants, arXiv:2002.05202, clamped",
            tolerance=1e-2,  # where a sum rounds the other way, an element of h moves by one step of E4M3
        ),
        w13_reference,
        _w13_cases,
        {"cuda": _native("moe_gemm_w13", "channels", (*_OPERANDS, "routing"), "h")},
    )
)
register(
    Op(
        Contract(
            "moe_gemm.w2",
            "out = bf16(x w2)" + _SUMS,
            (
                *_GROUPED,
                Argument("weight", "[E, ceil(features / 128), 2 * ceil(K / 256), 2, 4352], of pack()", ("uint8",)),
                Argument("row_factor", "[E, 2 * ceil(features / 128), 64]", ("float32",)),
                Argument("out", "[R, features]", ("bfloat16",), "out"),
                *_ROOM,
            ),
            {"features": "of the output", **_SCALARS},
            _SOURCE,
            tolerance=3e-3,
        ),
        w2_reference,
        _w2_cases,
        {"cuda": _native("moe_gemm_w2", "features", _OPERANDS, "out")},
    )
)
register(
    Op(
        Contract(
            "moe_gemm.combine",
            "out[t] = bf16(parts[p[t, 0]] + parts[p[t, 1]] + ... + shared[t]), fp32 sums in this order",
            (
                Argument("parts", "[R, D], D a multiple of 8", ("bfloat16",)),
                Argument("positions", "[T, C], row of each choice or -1: left out", ("int32",)),
                Argument("shared", "[T, D]", ("bfloat16",)),
                Argument("out", "[T, D]", ("bfloat16",), "out"),
            ),
            {},
            "Outrageously large neural networks, arXiv:1701.06538, the sum over experts",
            batch="T",
        ),
        combine_reference,
        _combine_cases,
        {"cuda": _combine_native},
    )
)
