"""Rows of bf16 to the packed rows that kernels and caches hold: FP8 inputs of linears, queries, window rows.

References round where the kernels do, operation by operation, so that all of it is compared bit for bit. The order of
the sum of squares is part of the contract (:func:`ordered_sum`); cosines and sines are exact ones rounded to fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.precision import root
from deepinfer.engine.ops.registry import register
from deepinfer.engine.ops.rope import frequencies

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

CHUNK = 8  # channels that a thread holds
LANES = 128  # threads that a sum over a row counts with
_EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # between E2M1 magnitudes; ties go to the even code
_BF16 = torch.bfloat16


def ordered_sum(x: torch.Tensor) -> torch.Tensor:
    """fp32 [R] of fp32 [R, C], C a multiple of 8: the sum over the row in the order that the kernels keep.

    The eight numbers of a chunk in ascending order; the chunks l, l + 128, l + 256, ... of each of 128 lanes in
    ascending order; lanes of a warp of 32 whose numbers differ in bit 4, then 3, 2, 1, 0; then the warps,
    (0 + 1) + (2 + 3).
    """
    rows, channels = x.shape
    chunks = channels // CHUNK
    passes = -(-chunks // LANES)
    parts = x.new_zeros(rows, passes * LANES, CHUNK)
    parts[:, :chunks] = x.reshape(rows, chunks, CHUNK)
    sums = _left_to_right(parts)
    sums = _left_to_right(sums.reshape(rows, passes, LANES).transpose(1, 2)).reshape(rows, 4, 32)
    for width in (16, 8, 4, 2, 1):
        sums = sums[..., :width] + sums[..., width : 2 * width]
    return (sums[:, 0, 0] + sums[:, 1, 0]) + (sums[:, 2, 0] + sums[:, 3, 0])


def _left_to_right(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[..., 0])
    for part in x.unbind(-1):
        total = total + part
    return total


def ordered_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16 [R, C]: ``weight * x / sqrt(mean(x^2) + eps)`` with every fp32 rounding as in the kernels."""
    values = x.float()
    total = ordered_sum(values * values)
    mean = total / torch.full_like(total, x.shape[1])  # by a number, devices multiply with its reciprocal
    inverse = torch.ones_like(mean) / root(mean + torch.full_like(mean, eps))
    return (weight.float() * values * inverse[:, None]).to(_BF16)


def rotate_rounded(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """bf16 like ``x`` [T, ..., C]: :func:`deepinfer.engine.ops.rope.rotate` with exact cosines rounded to fp32."""
    angle = (positions.float()[:, None] * freqs.float()).double()
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (freqs.numel(),)
    cos, sin = angle.cos().float().view(shape), angle.sin().float().view(shape)
    width = 2 * freqs.numel()
    even, odd = x[..., -width::2].float(), x[..., x.shape[-1] - width + 1 :: 2].float()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-width], turned.to(_BF16)], dim=-1)


def _power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """int64: the byte b with 2^(b - 127) = 2^ceil(log2 x), of positive fp32, on the bits."""
    return (x.view(torch.int32).long() + 0x7FFFFF) >> 23


def _value_of_byte(byte: torch.Tensor) -> torch.Tensor:
    return (byte << 23).to(torch.int32).view(torch.float32)  # no byte here is 0 or 255


def _blocks(x: torch.Tensor, width: int, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp32 [..., C / width, width], the largest magnitude of each block, at least ``floor``)."""
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // width, width)
    return blocks, blocks.abs().amax(-1).clamp_min(floor)


def _reciprocal(number: float) -> torch.Tensor:
    return torch.tensor(1.0 / number, dtype=torch.float32)


def fp8_32(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(E4M3 codes uint8 [..., C], UE8M0 bytes uint8 [..., C / 32]) of bf16 [..., C]."""
    blocks, largest = _blocks(x, 32, 1e-4)
    byte = _power_of_two_above(largest * _reciprocal(448.0))
    scaled = (blocks / _value_of_byte(byte)[..., None]).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(-2), byte.to(torch.uint8)


def _fp4(scaled: torch.Tensor) -> torch.Tensor:
    """uint8 [..., C / 2]: E2M1 codes of fp32 [..., groups, width], two a byte, the even channel low."""
    size = scaled.abs().clamp_max(6.0)
    code = torch.zeros_like(size, dtype=torch.uint8)
    for number, edge in enumerate(_EDGES):
        code += (size > edge if number % 2 == 0 else size >= edge).to(torch.uint8)
    code = (code | (torch.signbit(scaled).to(torch.uint8) << 3)).flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4)


def fp4_32(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(E2M1 codes uint8 [..., C / 2], UE8M0 bytes uint8 [..., C / 32]) of bf16 [..., C]."""
    blocks, largest = _blocks(x, 32, 6.0 * 2.0**-126)
    byte = _power_of_two_above(largest * _reciprocal(6.0))
    return _fp4(blocks / _value_of_byte(byte)[..., None]), byte.to(torch.uint8)


def fp4_16(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(E2M1 codes uint8 [..., C / 2], E4M3 scales uint8 [..., C / 16]) of bf16 [..., C]."""
    blocks, largest = _blocks(x, 16, 6.0 * 2.0**-9)
    scale = (largest * _reciprocal(6.0)).clamp_max(448.0).to(torch.float8_e4m3fn)
    return _fp4(blocks / scale.float()[..., None]), scale.view(torch.uint8)


def write_records(cache: torch.Tensor, slots: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """A copy of ``cache`` [S, B] with row t of ``records`` at ``slots[t]``, where there is such a slot."""
    out = cache.clone()
    there = (slots >= 0) & (slots < cache.shape[0])
    out[slots[there].long()] = records[there]
    return out


def random_rows(shape: tuple[int, ...], generator: torch.Generator, device: str) -> torch.Tensor:
    """bf16: normal numbers whose groups of 32 differ in size, some rows tiny, some zero, a few large outliers."""
    x = torch.randn(shape, generator=generator)
    groups = x.view(*shape[:-1], shape[-1] // 32, 32)
    groups *= torch.exp2(torch.randint(-6, 7, (*shape[:-1], shape[-1] // 32, 1), generator=generator).float())
    kind = torch.rand((*shape[:-1], 1), generator=generator)
    x = torch.where(kind < 0.1, x * 1e-7, torch.where(kind > 0.95, torch.zeros(()), x))
    x = torch.where(torch.rand(shape, generator=generator) < 0.01, x * 300.0, x)
    return x.to(_BF16).to(device)


def random_weight(channels: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """bf16 [C] around 1."""
    return (1.0 + 0.1 * torch.randn(channels, generator=generator)).to(_BF16).to(device)


def random_positions(count: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """int64 up to 2^20, the first and the last included."""
    positions = torch.randint(0, 1 << 20, (count,), generator=generator)
    positions[0], positions[-1] = 0, (1 << 20) - 1
    return positions.to(device)


def random_slots(count: int, records: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """int64 slots that differ from one another, every fifth of them none."""
    slots = torch.randperm(records, generator=generator)[:count]
    slots[4::5] = torch.where(torch.rand(len(slots[4::5]), generator=generator) < 0.5, -1, records)
    return slots.to(device)


def rope_frequencies(pairs: int, device: str) -> torch.Tensor:
    """fp32 [F] of plain RoPE."""
    return frequencies(2 * pairs, 10000.0).to(device)


def _fp8_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    codes, scales = fp8_32(inputs["x"])
    return {"codes": codes, "scales": scales}


def _normed_fp8_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    normed = ordered_norm(inputs["x"], inputs["weight"], scalars["eps"])
    codes, scales = fp8_32(normed)
    return {"normed": normed, "codes": codes, "scales": scales}


def _fp8_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Release widths and ragged ones; counts of rows that leave warps and blocks part empty."""
    for rows, channels in ((1, 32), (3, 96), (33, 1280), (17, 2304), (5, 5120), (2, 8192)):
        inputs = {"x": random_rows((rows, channels), generator, device)}
        out = {"codes": ((rows, channels), torch.uint8), "scales": ((rows, channels // 32), torch.uint8)}
        yield Case("%dx%d" % (rows, channels), inputs, {}, out)


def _normed_fp8_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Every kernel width, each with absent chunks; the normed row also left out; many rows: other kernels."""
    few = ((3, 32), (5, 256), (9, 416), (7, 800), (33, 1280), (3, 1952), (2, 4096), (3, 5120), (2, 7200))
    many = ((1030, 256), (1025, 480), (1026, 800), (1027, 1280), (1025, 1952), (1025, 2080))
    for rows, channels in (*few, *many):
        inputs = {
            "x": random_rows((rows, channels), generator, device),
            "weight": random_weight(channels, generator, device),
        }
        out = {"codes": ((rows, channels), torch.uint8), "scales": ((rows, channels // 32), torch.uint8)}
        if rows != 7:
            out["normed"] = ((rows, channels), _BF16)
        yield Case("%dx%d" % (rows, channels), inputs, {"eps": 1e-20}, out)


def _fp8_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x = inputs["x"]
    launch(module, "quantize_rows_fp8", x, outputs["codes"], outputs["scales"], *x.shape)


def _normed_fp8_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x = inputs["x"]
    words = (x, inputs["weight"], outputs.get("normed"), outputs["codes"], outputs["scales"], *x.shape)
    launch(module, "quantize_rows_normed_fp8", *words, float(scalars["eps"]))


SOURCE = "OCP 8-bit floating point (E4M3FN) and microscaling formats 1.0 (E2M1, E8M0)"
ORDER = "sum of squares: the order of ordered_sum"
_CODES = Argument("codes", "[R, C], E4M3", ("uint8",), "out")
_SCALES = Argument("scales", "[R, C / 32], UE8M0", ("uint8",), "out")
POSITIONS = Argument("positions", "[T], not negative", ("int64",))
FREQS = Argument("freqs", "[F], F a multiple of 4, at most 32", ("float32",))
SLOTS = Argument("slots", "[T], distinct; below 0 or from S on, nothing is written", ("int32", "int64"))

register(
    Op(
        Contract(
            "quantize_rows.fp8",
            "E4M3 codes and a power-of-two scale per 32 channels: s = 2^ceil(log2(max(amax, 1e-4) / 448))",
            (Argument("x", "[R, C], C a multiple of 32, finite", ("bfloat16",)), _CODES, _SCALES),
            {},
            SOURCE,
            ties="halfway rounds to the even code",
            batch="R",
        ),
        _fp8_reference,
        _fp8_cases,
        {"cuda": _fp8_native},
    )
)
register(
    Op(
        Contract(
            "quantize_rows.normed_fp8",
            "RMSNorm rounded to bf16, then quantize_rows.fp8 of it; " + ORDER,
            (
                Argument("x", "[R, C], C a multiple of 32, at most 8192", ("bfloat16",)),
                Argument("weight", "[C]", ("bfloat16",)),
                Argument("normed", "[R, C]", ("bfloat16",), "out", optional=True),
                _CODES,
                _SCALES,
            ),
            {"eps": "added to the mean square"},
            SOURCE + "; RMSNorm: arXiv:1910.07467",
            ties="halfway rounds to the even code",
            batch="R",
        ),
        _normed_fp8_reference,
        _normed_fp8_cases,
        {"cuda": _normed_fp8_native},
    )
)


def _queries_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return {"out": rotate_rounded(inputs["x"], inputs["positions"], inputs["freqs"])}


def _index_queries_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    codes, scales = fp4_32(rotate_rounded(inputs["x"], inputs["positions"], inputs["freqs"]))
    return {"codes": codes, "scales": scales}


def _window_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    normed = ordered_norm(inputs["x"], inputs["weight"], scalars["eps"])
    codes, scales = fp8_32(rotate_rounded(normed, inputs["positions"], inputs["freqs"]))
    return {"cache": write_records(inputs["before"], inputs["slots"], torch.cat([codes, scales], dim=1))}


def _head_inputs(shape: tuple[int, int, int], pairs: int, generator: torch.Generator, device: str) -> Tensors:
    return {
        "x": random_rows(shape, generator, device),
        "positions": random_positions(shape[0], generator, device),
        "freqs": rope_frequencies(pairs, device),
    }


def _query_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """The release's heads, a ragged number of them, and narrow ones."""
    for tokens, heads, channels, pairs in ((3, 64, 512, 32), (5, 7, 512, 32), (2, 4, 64, 8), (1, 33, 128, 32)):
        shape = (tokens, heads, channels)
        out = {"out": (shape, _BF16)}
        yield Case("%dx%dx%d" % shape, _head_inputs(shape, pairs, generator, device), {}, out)


def _index_query_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for tokens, heads, channels, pairs in ((5, 32, 128, 32), (3, 16, 32, 8), (2, 37, 128, 32)):
        shape = (tokens, heads, channels)
        out = {
            "codes": ((tokens, heads, channels // 2), torch.uint8),
            "scales": ((tokens, heads, channels // 32), torch.uint8),
        }
        yield Case("%dx%dx%d" % shape, _head_inputs(shape, pairs, generator, device), {}, out)


def row_inputs(shape: tuple[int, int], pairs: int, generator: torch.Generator, device: str) -> Tensors:
    """What the ops take that write normed and rotated rows; slots are left to the caller."""
    return {
        "x": random_rows(shape, generator, device),
        "weight": random_weight(shape[1], generator, device),
        "positions": random_positions(shape[0], generator, device),
        "freqs": rope_frequencies(pairs, device),
    }


def random_cache(shape: tuple[int, int], generator: torch.Generator, device: str) -> torch.Tensor:
    """uint8 bytes that a write must leave alone where no slot is."""
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)


def _window_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Both kinds of slots, and widths whose records are not aligned to 8 bytes."""
    for tokens, records, channels, pairs in ((33, 60, 512, 32), (7, 7, 64, 8), (5, 9, 192, 32), (6, 8, 320, 16)):
        for dtype in (torch.int64, torch.int32):
            inputs = row_inputs((tokens, channels), pairs, generator, device)
            inputs["slots"] = random_slots(tokens, records, generator, device).to(dtype)
            shape = (records, channels + channels // 32)
            inputs["before"] = random_cache(shape, generator, device)
            label = "%dx%d into %d, %s" % (tokens, channels, records, dtype)
            yield Case(label, inputs, {"eps": 1e-20}, {"cache": (shape, torch.uint8)})


def _queries_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, freqs = inputs["x"], inputs["freqs"]
    out = outputs.get("out", x)
    launch(module, "rows_queries", x, inputs["positions"], freqs, out, *x.shape, freqs.numel())


def _index_queries_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, freqs = inputs["x"], inputs["freqs"]
    words = (x, inputs["positions"], freqs, outputs["codes"], outputs["scales"], *x.shape, freqs.numel())
    launch(module, "rows_index_queries", *words)


def cache_of(inputs: Tensors, outputs: Tensors) -> torch.Tensor:
    """The cache to write to, holding what it held before."""
    cache = outputs["cache"]
    return cache.copy_(inputs["before"]) if "before" in inputs else cache


def _window_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, freqs, slots, cache = inputs["x"], inputs["freqs"], inputs["slots"], cache_of(inputs, outputs)
    words = (x, inputs["weight"], inputs["positions"], freqs, slots, cache, *x.shape, freqs.numel(), cache.shape[0])
    launch(module, "rows_window", *words, int(slots.dtype == torch.int64), float(scalars["eps"]))


_HEADS = Argument("x", "[T, H, C], C / 8 divides 128", ("bfloat16",))
_ROTATION = "rotation of the last 2F channels by fp32(position) * freqs, cosines rounded from exact ones, bf16 out"

register(
    Op(
        Contract(
            "rows.queries",
            _ROTATION,
            (
                Argument("x", "[T, H, C], C / 8 divides 128", ("bfloat16",), "inout"),
                POSITIONS,
                FREQS,
                Argument("out", "[T, H, C]; absent: x itself changes", ("bfloat16",), "out", optional=True),
            ),
            {},
            "Rotary embedding on interleaved pairs: arXiv:2104.09864",
            batch="T",
        ),
        _queries_reference,
        _query_cases,
        {"cuda": _queries_native},
    )
)
register(
    Op(
        Contract(
            "rows.index_queries",
            _ROTATION + "; then E2M1 codes and a power-of-two scale per 32 channels",
            (
                _HEADS,
                POSITIONS,
                FREQS,
                Argument("codes", "[T, H, C / 2], the even channel in the low nibble", ("uint8",), "out"),
                Argument("scales", "[T, H, C / 32], UE8M0", ("uint8",), "out"),
            ),
            {},
            SOURCE,
            ties="halfway rounds to the even code",
            batch="T",
        ),
        _index_queries_reference,
        _index_query_cases,
        {"cuda": _index_queries_native},
    )
)
register(
    Op(
        Contract(
            "rows.window",
            "RMSNorm, rotation, FP8 with a scale per 32 channels: C codes and C / 32 scales at a slot; " + ORDER,
            (
                Argument("x", "[T, C], C a multiple of 64, at most 512", ("bfloat16",)),
                Argument("weight", "[C]", ("bfloat16",)),
                POSITIONS,
                FREQS,
                SLOTS,
                Argument("before", "[S, C + C / 32]; absent: what cache holds", ("uint8",), optional=True),
                Argument("cache", "[S, C + C / 32]", ("uint8",), "out"),
            ),
            {"eps": "added to the mean square"},
            SOURCE,
            ties="halfway rounds to the even code",
            batch="T",
        ),
        _window_reference,
        _window_cases,
        {"cuda": _window_native},
    )
)
