"""Sparse latent attention over packed rows: FP8 window rows and FP4 selected rows are keys and values at once.

The fused form of :mod:`deepinfer.engine.ops.attention` for the release's shape: gather, dequantize, attend, turn back.
Prefill and decode are one function of T tokens, each with its own lists of rows. Rows are as the caches hold them:
a window row is 512 E4M3 bytes and 16 E8M0 scales of 32 channels; an entry is 256 bytes of E2M1, the even channel in
the low nibble, and 32 E4M3 scales of 16 channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.dequant import e2m1_values, e4m3_values
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.quantize_rows import fp4_16, fp8_32
from deepinfer.engine.ops.registry import register
from deepinfer.engine.ops.rope import frequencies

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

HEADS, CHANNELS, TURNED = 64, 512, 64
WINDOW_BYTES, ENTRY_BYTES = 528, 288
INPUTS = ("query", "window", "window_rows", "entries", "entry_rows", "counts", "sink", "rotation")


def window_values(rows: torch.Tensor) -> torch.Tensor:
    """fp64 [N, 512] of packed window rows uint8 [N, 528]."""
    codes = e4m3_values().to(rows.device)[rows[:, :CHANNELS].long()]
    scales = torch.pow(2.0, rows[:, CHANNELS:].double() - 127.0)
    return codes * scales.repeat_interleave(32, 1)


def entry_values(rows: torch.Tensor) -> torch.Tensor:
    """fp64 [N, 512] of packed entries uint8 [N, 288]."""
    packed = rows[:, : CHANNELS // 2].long()
    codes = e2m1_values().to(rows.device)[torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)]
    return codes * e4m3_values().to(rows.device)[rows[:, CHANNELS // 2 :].long()].repeat_interleave(16, 1)


def pack_window(x: torch.Tensor) -> torch.Tensor:
    """uint8 [N, 528] of bf16 [N, 512] by the FP8-32 quantizer."""
    return torch.cat(fp8_32(x), dim=1)


def pack_entries(x: torch.Tensor) -> torch.Tensor:
    """uint8 [N, 288] of bf16 [N, 512] by the FP4-16 quantizer."""
    return torch.cat(fp4_16(x), dim=1)


def rotation_table(positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """fp32 [T, 64]: cosine and sine in turn of fp32(position) * fp32(frequency), ``freqs`` fp32 [32]."""
    angle = (positions.to(torch.float32)[:, None] * freqs.to(positions.device)).double()
    return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1).float()


def _gather(pool: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed rows [T, S, B], zero where there is none; bool [T, S] where there is one)."""
    slot = torch.arange(rows.shape[1], device=rows.device)
    there = (rows >= 0) & (rows < pool.shape[0]) & (slot < counts[:, None])
    if not pool.shape[0]:
        return pool.new_zeros(*rows.shape, pool.shape[1]), there
    return pool[torch.where(there, rows, 0).long()] * there[..., None], there


def _turn_back(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Inverse rotation of the last 64 channels of fp64 [T, H, C]."""
    cos, sin = rotation.double()[:, None, 0::2], rotation.double()[:, None, 1::2]
    even, odd = x[..., -TURNED::2], x[..., x.shape[-1] - TURNED + 1 :: 2]
    turned = torch.stack([even * cos + odd * sin, odd * cos - even * sin], dim=-1).flatten(-2)
    return torch.cat([x[..., :-TURNED], turned], dim=-1)


def reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``out`` fp64 [T, 64, 512]; see the contract."""
    tokens = inputs["query"].shape[0]
    window, seen = _gather(inputs["window"], inputs["window_rows"], inputs["counts"][:, 0])
    entries, chosen = _gather(inputs["entries"], inputs["entry_rows"], inputs["counts"][:, 1])
    window_keys = window_values(window.flatten(0, 1)).view(tokens, -1, CHANNELS)
    entry_keys = entry_values(entries.flatten(0, 1)).view(tokens, -1, CHANNELS)
    keys = torch.cat([window_keys, entry_keys], dim=1)
    mask = torch.cat([seen, chosen], dim=1)[:, None]
    scores = torch.einsum("thc,tsc->ths", inputs["query"].double(), keys) * CHANNELS**-0.5
    sink = inputs["sink"].double()[None, :, None].expand(tokens, HEADS, 1)
    scores = torch.cat([scores.masked_fill(~mask, float("-inf")), sink], dim=-1)
    weight = torch.softmax(scores, dim=-1)[..., :-1]
    return {"out": _turn_back(torch.einsum("ths,tsc->thc", weight, keys), inputs["rotation"])}


def draw_rows(count: int, generator: torch.Generator, *, codes: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(window rows, entries) on the CPU: of normal numbers whose rows differ in size, or of random codes and scales."""
    if not codes:
        size = torch.exp2(torch.randint(-2, 2, (2, count, 1), generator=generator).float())
        x = torch.randn((2, count, CHANNELS), generator=generator) * size
        return pack_window(x[0].bfloat16()), pack_entries(x[1].bfloat16())
    window = torch.randint(0, 256, (count, WINDOW_BYTES), generator=generator).to(torch.uint8)
    window[:, :CHANNELS][(window[:, :CHANNELS] & 127) == 127] = 0x35  # no quantizer writes a NaN
    window[:, CHANNELS:] = torch.randint(105, 123, (count, 16), generator=generator).to(torch.uint8)
    entries = torch.randint(0, 256, (count, ENTRY_BYTES), generator=generator).to(torch.uint8)
    entries[:, CHANNELS // 2 :] = torch.randint(1, 0x48, (count, 32), generator=generator).to(torch.uint8)
    return window, entries


def draw_lists(
    tokens: int, slots: int, pool: int, generator: torch.Generator, *, holes: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int32 [T, S] rows, some of them none or twice where ``holes``; int32 [T] counts, 0 to S, S where no holes)."""
    if not pool or not slots:
        return torch.full((tokens, slots), -1, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int32)
    rows = torch.randint(0, pool, (tokens, slots), generator=generator)
    none = torch.rand((tokens, slots), generator=generator) < holes
    rows = torch.where(none, torch.where(rows % 2 == 0, -1, pool), rows).to(torch.int32)
    counts = torch.full((tokens,), slots)
    if holes:
        counts = torch.randint(0, slots + 1, (tokens,), generator=generator)
        counts[0] = slots
    return rows, counts.to(torch.int32)


def draw_inputs(
    tokens: int,
    slots: tuple[int, int],
    generator: torch.Generator,
    device: str,
    *,
    pool: int = 300,
    holes: float = 0.0,
    size: float = 1.0,
    codes: bool = False,
) -> Tensors:
    """Random inputs; ``slots`` of window and entries, a pool of ``pool`` rows each where there are slots."""
    window, entries = draw_rows(pool, generator, codes=codes)
    pools = [rows if count else rows[:0] for rows, count in zip((window, entries), slots, strict=True)]
    lists = [draw_lists(tokens, count, pool, generator, holes=holes) for count in slots]
    positions = torch.randint(0, 1 << 20, (tokens,), generator=generator)
    inputs = {
        "query": normal((tokens, HEADS, CHANNELS), generator, "cpu") * size,
        "window": pools[0],
        "window_rows": lists[0][0],
        "entries": pools[1],
        "entry_rows": lists[1][0],
        "counts": torch.stack([lists[0][1], lists[1][1]], dim=1),
        "sink": normal((HEADS,), generator, "cpu") * 2.0,
        "rotation": rotation_table(positions, frequencies(TURNED, 160000.0)),
    }
    inputs["query"] = inputs["query"].bfloat16()
    return {name: tensor.contiguous().to(device) for name, tensor in inputs.items()}


def _case(label: str, inputs: Tensors) -> Case:
    return Case(label, inputs, {}, {"out": (tuple(inputs["query"].shape), torch.bfloat16)})


def cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Release shape, ragged lists with holes, layers without entries, nothing seen, growing scores, more tokens than
    a device has multiprocessors, every finite code."""
    yield _case("one token 128+512", draw_inputs(1, (128, 512), generator, device))
    yield _case("3 tokens 128+512, large scores", draw_inputs(3, (128, 512), generator, device, size=8.0))
    yield _case("7 tokens 128+512 with holes", draw_inputs(7, (128, 512), generator, device, holes=0.3))
    yield _case("5 tokens 100+77 with holes", draw_inputs(5, (100, 77), generator, device, holes=0.3, size=3.0))
    yield _case("4 tokens, window only", draw_inputs(4, (128, 0), generator, device))
    yield _case("4 tokens, entries only", draw_inputs(4, (0, 130), generator, device))
    yield _case("300 tokens 16+70 with holes", draw_inputs(300, (16, 70), generator, device, holes=0.2))
    yield _case("9 tokens, random codes", draw_inputs(9, (128, 200), generator, device, codes=True, holes=0.1))
    unseen = draw_inputs(3, (40, 40), generator, device)
    unseen["counts"][1] = 0
    unseen["window_rows"][2], unseen["entry_rows"][2] = -1, 300
    yield _case("tokens that see nothing", unseen)
    sinks = draw_inputs(2, (128, 128), generator, device)
    sinks["sink"][0::2] += 40.0
    sinks["sink"][1::2] -= 200.0
    yield _case("sinks far above and below the scores", sinks)


def call(module: Any, name: str, inputs: Tensors, out: torch.Tensor) -> None:
    """Launch the kernel ``name``: ``sparse_mla`` or ``sparse_mla_portable``."""
    pools = [inputs["window"].shape[0], inputs["window_rows"].shape[1]]
    pools += [inputs["entries"].shape[0], inputs["entry_rows"].shape[1]]
    launch(module, name, *(inputs[key] for key in INPUTS), out, inputs["query"].shape[0], *pools)


def _native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    call(module, "sparse_mla", inputs, outputs["out"])


def _portable(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    call(module, "sparse_mla_portable", inputs, outputs["out"])


_ARGUMENTS = (
    Argument("query", "[T, 64, 512], rotated", ("bfloat16",)),
    Argument("window", "[W, 528], 512 E4M3 codes and 16 E8M0 scales, at most 2^71", ("uint8",)),
    Argument("window_rows", "[T, A], rows of window; an index outside it is no row", ("int32",)),
    Argument("entries", "[E, 288], 256 bytes of two E2M1 codes and 32 E4M3 scales", ("uint8",)),
    Argument("entry_rows", "[T, B], rows of entries; an index outside it is no row", ("int32",)),
    Argument("counts", "[T, 2], slots to look at of window_rows and of entry_rows", ("int32",)),
    Argument("sink", "[64]", ("float32",)),
    Argument("rotation", "[T, 64], cosine and sine in turn of a position's 32 angles", ("float32",)),
    Argument("out", "[T, 64, 512], 0 where nothing is seen", ("bfloat16",), "out"),
)

for _name, _function, _order in (
    ("sparse", _native, "tiles of 64 slots on sm_90, of 32 elsewhere"),
    ("sparse_portable", _portable, "tiles of 32 slots"),
):
    register(
        Op(
            Contract(
                "attention." + _name,
                "softmax of 512^-0.5 query . row over the listed rows, a sink in the denominator; rows are values; "
                "then the inverse rotation. A row listed twice counts twice. Sums: %s, window first" % _order,
                _ARGUMENTS,
                {},
                "Attention with one shared key-value head and a learned sink; row formats of OCP microscaling and FP8",
                tolerance=5e-3,
                batch="T",
            ),
            reference,
            cases,
            {"cuda": _function},
        )
    )
