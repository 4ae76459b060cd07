"""The routed experts on a device: MXFP4 weights times FP8 activations grouped by expert, and the sum over experts.

The release's tensors stay the source of truth; :func:`pack` brings them, once at load, into the order in which the
kernel's threads read them, at the same 4.25 bits a weight. csrc/kernels/moe_gemm/cuda/moe_gemm.h describes that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.dequant import GROUP, e2m1_values, e4m3_values
from deepinfer.engine.ops.draw import normal, uniform
from deepinfer.engine.ops.launch import ContractBroken, launch
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

TILE, CHUNK = 64, 128  # rows and columns of a packed block
CODE_BYTES, BLOCK_BYTES = TILE * CHUNK // 2, TILE * CHUNK // 2 + TILE * CHUNK // GROUP
SPAN = 11  # binades between the scales of a row that fold into E4M3 codes
_TOP = 6  # exponent, relative to its base, of a row's largest scale
_SIGNS, _MAGNITUDES = (7, 3), (0, 16)  # first bit of sign and magnitude per half of a group


@dataclass(frozen=True)
class Packed:
    """``weight`` uint8 [E, P, Q, 2, 4352], ``row_factor`` fp32 [E, 2 P, 64], and whether scales are ``folded``."""

    weight: torch.Tensor
    row_factor: torch.Tensor
    folded: bool


def pack(weight: torch.Tensor, scale: torch.Tensor, *, gated: bool) -> Packed:
    """``weight`` uint8 [E, N, K / 2], ``scale`` uint8 [E, N, K / 32] of the release, all experts of a rank.

    ``gated``: rows are the gate projection, then the up projection; their channels are brought together. Scales fold
    into the E4M3 codes where no row spans more than 11 binades; that loses nothing. Raises :class:`ContractBroken`.
    """
    experts, rows, half = weight.shape
    if half * 2 % GROUP or scale.shape != (experts, rows, half * 2 // GROUP) or rows % (2 * GROUP if gated else GROUP):
        shapes = "weight %s, scale %s" % (list(weight.shape), list(scale.shape))
        raise ContractBroken(
            "pack: " + shapes, fix="give [E, N, K / 2] and [E, N, K / 32], N and K multiples of 32 per projection"
        )
    if bool((scale == 255).any()):
        raise ContractBroken("pack: a scale is 255, which is NaN", fix="check the checkpoint's files")
    base, folded = zip(*(_bases(weight[e], scale[e]) for e in range(experts)), strict=True)
    fold = all(folded)
    blocks = [_pack_expert(weight[e], scale[e], base[e] if fold else None, gated) for e in range(experts)]
    factors = [_tiles(_factor(one) if fold else torch.ones_like(one).float(), gated).flatten(1) for one in base]
    return Packed(torch.stack(blocks), torch.stack(factors), fold)


def _factor(base: torch.Tensor) -> torch.Tensor:
    return torch.pow(2.0, base.double() - 127.0).float()


def _bases(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """int32 [N], each row's base scale, and whether all its groups that hold anything but zeros are near enough."""
    used = ((weight & 0x77) != 0).unflatten(1, (-1, GROUP // 2)).any(2)
    wide = scale.int()
    top = torch.where(used, wide, torch.full_like(wide, -1)).amax(1)
    low = torch.where(used, wide, torch.full_like(wide, 256)).amin(1)
    top = torch.where(top < 0, torch.full_like(top, 127), top)
    return top - _TOP, bool((top - torch.minimum(low, top) <= SPAN).all())


def _tiles(x: torch.Tensor, gated: bool) -> torch.Tensor:
    """[N, ...] -> [tiles, 4 w, 2 r, 8 g, ...] in the order of the kernel's rows, zeros up to an even number."""
    if gated:
        x = x.unflatten(0, (2, -1, 4, 8)).movedim(0, 2)
    else:
        missing = -x.shape[0] % TILE
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]).unflatten(0, (-1, 4, 2, 8))
    return torch.cat([x, x.new_zeros(x.shape[0] % 2, *x.shape[1:])])


def _pack_expert(weight: torch.Tensor, scale: torch.Tensor, base: torch.Tensor | None, gated: bool) -> torch.Tensor:
    """uint8 [P, Q, 2, 4352]."""
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(1)
    bytes_of = scale if base is None else (8 * (scale.int() - base[:, None] + _TOP)).clamp(8, 96).to(torch.uint8)
    missing = -codes.shape[1] % (2 * CHUNK)
    codes = torch.nn.functional.pad(codes, (0, missing))
    bytes_of = torch.nn.functional.pad(bytes_of, (0, missing // GROUP))
    # [tile, w, r, g, chunk, half, s, b, q, c]
    split = _tiles(codes, gated).unflatten(4, (-1, 2, 2, 2, 4, 4))
    words = torch.zeros_like(split[..., 0, :, 0], dtype=torch.int32)
    for b in range(2):
        for c in range(4):
            code = split[..., b, :, c].int()
            words |= (code & 7) << (_MAGNITUDES[b] + 4 * c) | (code >> 3) << (_SIGNS[b] + 8 * c)
    # [tile, chunk, half, w, g, q, s, r]
    words = words.permute(0, 4, 5, 1, 3, 7, 6, 2).contiguous()
    tiles, chunks = words.shape[:2]
    scales = _tiles(bytes_of, gated).unflatten(4, (-1, 4)).permute(0, 4, 1, 2, 3, 5)
    block = torch.cat([words.view(torch.uint8).reshape(tiles, chunks, -1), scales.reshape(tiles, chunks, -1)], dim=2)
    halves: torch.Tensor = block.unflatten(0, (-1, 2)).transpose(1, 2).contiguous()
    return halves


def unpack(weight: torch.Tensor, row_factor: torch.Tensor, folded: bool, *, gated: bool) -> torch.Tensor:
    """fp64 [64 tiles, 128 chunks]: the matrix of one expert, [P, Q, 2, 4352] with padding; gate rows, then up rows."""
    block = weight.transpose(1, 2).flatten(0, 1)  # [tile, chunk, 4352]
    tiles, chunks = block.shape[:2]
    words = block[..., :CODE_BYTES].contiguous().view(torch.int32).view(tiles, chunks, 2, 4, 8, 4, 2, 2)
    value = torch.zeros(*words.shape, 2, 4, dtype=torch.float64, device=weight.device)
    table = e2m1_values().to(weight.device)
    for b in range(2):
        for c in range(4):
            code = (words >> (_MAGNITUDES[b] + 4 * c)) & 7 | ((words >> (_SIGNS[b] + 8 * c)) & 1) << 3
            value[..., b, c] = table[code.long()]
    # From [tile, chunk, half, w, g, q, s, r, b, c] to [tile, w, r, g, chunk, half, s, b, q, c].
    value = value.permute(0, 3, 7, 4, 1, 2, 6, 8, 5, 9).reshape(tiles, 4, 2, 8, -1)
    stored = block[..., CODE_BYTES:].view(tiles, chunks, 4, 2, 8, 4).permute(0, 2, 3, 4, 1, 5).flatten(4).double()
    exponent = stored / 8 - _TOP if folded else stored - 127
    factor = row_factor.view(tiles, 4, 2, 8, 1).double()
    value = value * torch.pow(2.0, exponent).repeat_interleave(GROUP, 4) * factor
    return value.movedim(2, 0).flatten(0, 3) if gated else value.flatten(0, 3)


def _activations(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    power = torch.pow(2.0, scale.double() - 127.0).repeat_interleave(GROUP, 1)
    return e4m3_values().to(x.device)[x.long()] * power


def _products(inputs: Tensors, folded: bool, gated: bool, features: int) -> torch.Tensor:
    """fp64 [R, features]: every row times its expert's matrix; gate columns, then up columns."""
    x = _activations(inputs["x"], inputs["x_scale"])
    out = torch.zeros(x.shape[0], features, dtype=torch.float64, device=x.device)
    offsets = inputs["offsets"].tolist()
    for e, (first, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if first == end:
            continue
        matrix = unpack(inputs["weight"][e], inputs["row_factor"][e], folded, gated=gated)[:, : x.shape[1]]
        if gated:
            matrix = torch.cat([half[: features // 2] for half in matrix.chunk(2)])
        out[first:end] = x[first:end] @ matrix[:features].T
    return out


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(E4M3 bytes [R, C], E8M0 bytes [R, C / 32]) of fp32 [R, C]: ``quantizers.qdq_fp8_32`` in its stored form."""
    blocks = x.float().unflatten(1, (-1, GROUP))
    limit = torch.tensor(1.0 / 448.0, dtype=torch.float32, device=x.device)
    bits = (blocks.abs().amax(2).clamp_min(1e-4) * limit).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    power = torch.pow(2.0, 127.0 - exponent.double()).float()
    codes = (blocks * power[..., None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten(1), exponent.to(torch.uint8)


def w13_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """Products in fp64, gate and up rounded to bf16, activation in fp32, one rounding to FP8."""
    channels, limit = int(scalars["channels"]), float(scalars["limit"])
    both = _products(inputs, bool(scalars["folded"]), True, 2 * channels).to(torch.bfloat16).float()
    gate, up = both[:, :channels].clamp_max(limit), both[:, channels:].clamp(-limit, limit)
    codes, scale = quantize(torch.nn.functional.silu(gate) * up * inputs["routing"].float()[:, None])
    return {"h": codes, "h_scale": scale}


def w2_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """Products in fp64."""
    return {"out": _products(inputs, bool(scalars["folded"]), False, int(scalars["features"]))}


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
    codes, scale = quantize(x)
    return {"x": codes.to(device), "x_scale": scale.to(device), "offsets": offsets.to(device)}


# Rows per expert, K, channels or features, binades of the scales, tile.
_CASES = (
    ((1, 0, 3), 256, 64, 4, 0),
    ((8, 9, 0, 17, 31), 128, 96, 4, 32),
    ((33, 1, 64, 65), 384, 128, 4, 128),
    ((129, 300), 256, 64, 4, 128),
    ((2, 40), 64, 32, 4, 0),
    ((5, 0, 70), 256, 64, 30, 0),
    ((7, 16), 5120, 64, 6, 0),
    ((100,), 2304, 128, 6, 0),
)


def _weights(gated: bool, experts: int, rows: int, columns: int, spread: int, generator: torch.Generator) -> Packed:
    return pack(*random_weights(experts, rows, columns, generator, spread=spread), gated=gated)


def _w13_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Experts without rows, every kind of tile, ragged ends, K of less than a chunk, scales that do not fold."""
    for counts, columns, channels, spread, tile in _CASES:
        packed = _weights(True, len(counts), 2 * channels, columns, spread, generator)
        rows = sum(counts)
        inputs = _rows(counts, columns, generator, device)
        inputs |= {"weight": packed.weight.to(device), "row_factor": packed.row_factor.to(device)}
        inputs["routing"] = uniform((rows,), 0.1, 1.0, generator, device)
        scalars = {"channels": channels, "folded": int(packed.folded), "tile": tile, "limit": 10.0}
        out = {"h": ((rows, channels), torch.uint8), "h_scale": ((rows, channels // GROUP), torch.uint8)}
        yield Case("rows %s, K %d, %d channels, tile %d" % (counts, columns, channels, tile), inputs, scalars, out)


def _w2_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """The same for the down projection."""
    for counts, columns, features, spread, tile in _CASES:
        packed = _weights(False, len(counts), features, columns, spread, generator)
        inputs = _rows(counts, columns, generator, device)
        inputs |= {"weight": packed.weight.to(device), "row_factor": packed.row_factor.to(device)}
        scalars = {"features": features, "folded": int(packed.folded), "tile": tile}
        out = {"out": ((sum(counts), features), torch.bfloat16)}
        yield Case("rows %s, K %d, N %d, tile %d" % (counts, columns, features, tile), inputs, scalars, out)


def _combine_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Tokens of which other ranks hold some or all experts; more choices than are loaded at a time."""
    for tokens, choices, width, rows in ((5, 6, 5120, 20), (33, 2, 128, 40), (3, 16, 64, 9), (4, 6, 64, 0)):
        positions = torch.randint(-1 - rows // 4, max(rows, 1), (tokens, choices), generator=generator)
        positions = positions.clamp(-1, rows - 1).int()
        inputs = {"parts": normal((rows, width), generator, device, torch.bfloat16), "positions": positions.to(device)}
        inputs["shared"] = normal((tokens, width), generator, device, torch.bfloat16)
        out = {"out": ((tokens, width), torch.bfloat16)}
        yield Case("%d tokens, %d choices of %d rows" % (tokens, choices, rows), inputs, {}, out)


def _w13_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    rows, k = inputs["x"].shape
    tensors = [inputs[name] for name in ("x", "x_scale", "offsets", "weight", "row_factor", "routing")]
    sizes = (rows, inputs["weight"].shape[0], k, *(int(scalars[name]) for name in ("channels", "folded", "tile")))
    launch(module, "moe_gemm_w13", *tensors, outputs["h"], outputs["h_scale"], *sizes, float(scalars["limit"]))


def _w2_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    rows, k = inputs["x"].shape
    tensors = [inputs[name] for name in ("x", "x_scale", "offsets", "weight", "row_factor")]
    sizes = (rows, inputs["weight"].shape[0], k, *(int(scalars[name]) for name in ("features", "folded", "tile")))
    launch(module, "moe_gemm_w2", *tensors, outputs["out"], *sizes)


def _combine_native(module: ModuleType, inputs: Tensors, outputs: Tensors, _: Scalars) -> None:
    parts, positions = inputs["parts"], inputs["positions"]
    sizes = (parts.shape[0], *positions.shape, parts.shape[1])
    launch(module, "moe_combine", parts, positions, inputs["shared"], outputs["out"], *sizes)


_GROUPED = (
    Argument("x", "[R, K], E4M3, rows sorted by expert; K a multiple of 32", ("uint8",)),
    Argument("x_scale", "[R, K / 32], E8M0", ("uint8",)),
    Argument("offsets", "[E + 1]: expert e has rows offsets[e] to offsets[e + 1] - 1; the last is R", ("int32",)),
)
_SCALARS = {"folded": "whether the packed scales are folded", "tile": "tokens of a tile: 32 or 128; 0: by the mean"}
_SUMS = "; sums of 32 products by the matrix unit, of groups in fp32 by ascending K, whatever the number of rows"
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
                Argument("h", "[R, channels], E4M3", ("uint8",), "out"),
                Argument("h_scale", "[R, channels / 32], E8M0", ("uint8",), "out", tolerance=2e-3),
            ),
            {"channels": "of the hidden layer", **_SCALARS, "limit": "of the clamps"},
            _SOURCE + "; GLU variants, arXiv:2002.05202, clamped",
            tolerance=4e-2,  # of codes as numbers: a gate next to zero may change its sign bit
        ),
        w13_reference,
        _w13_cases,
        {"cuda": _w13_native},
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
            ),
            {"features": "of the output", **_SCALARS},
            _SOURCE,
            tolerance=3e-3,
        ),
        w2_reference,
        _w2_cases,
        {"cuda": _w2_native},
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
