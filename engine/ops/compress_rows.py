"""Compressed tokens: two tokens to one latent, and the rows of the main and the index cache that come of latents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops.compressor import pair_up
from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.quantize_rows import (
    FREQS,
    ORDER,
    POSITIONS,
    SLOTS,
    SOURCE,
    cache_of,
    fp4_16,
    fp4_32,
    ordered_norm,
    random_cache,
    random_slots,
    rotate_rounded,
    row_inputs,
    write_records,
)
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

_BF16 = torch.bfloat16


def _entry(latent: torch.Tensor, inputs: Tensors, eps: float) -> Tensors:
    normed = ordered_norm(latent, inputs["weight"], eps)
    records = torch.cat(fp4_16(rotate_rounded(normed, inputs["positions"], inputs["freqs"])), dim=1)
    return {"normed": normed, "cache": write_records(inputs["before"], inputs["slots"], records)}


def _entry_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return _entry(inputs["x"], inputs, scalars["eps"])


def index_records(cache: torch.Tensor, entries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (codes [blocks, entries, w], scales [blocks, entries, w / 16]) of a paged index cache [blocks, bytes]."""
    width = cache.shape[1] // entries * 16 // 17
    codes = cache[:, : entries * width].view(cache.shape[0], entries, width)
    return codes, cache[:, entries * width :].view(cache.shape[0], entries, width // 16)


def _index_key_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    normed = ordered_norm(inputs["x"], inputs["weight"], scalars["eps"])
    found = fp4_32(rotate_rounded(normed, inputs["positions"], inputs["freqs"]))
    entries, slots, cache = int(scalars["entries"]), inputs["slots"].long(), inputs["before"].clone()
    there = (slots >= 0) & (slots < cache.shape[0] * entries)
    block, place = slots[there] // entries, slots[there] % entries
    for view, rows in zip(index_records(cache, entries), found, strict=True):
        view[block, place] = rows[there]
    return {"cache": cache}


def _pair_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return {"latent": pair_up(inputs["gates"], inputs["values"])}


def _pair_entry_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return _entry(pair_up(inputs["gates"], inputs["values"]).to(_BF16), inputs, scalars["eps"])


def _entry_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Both kinds of slots; narrow rows, and one without the normed row."""
    for tokens, records, channels, pairs in ((33, 64, 512, 32), (7, 7, 64, 8), (5, 9, 192, 32), (6, 8, 320, 16)):
        for dtype in (torch.int64, torch.int32):
            inputs = row_inputs((tokens, channels), pairs, generator, device)
            inputs["slots"] = random_slots(tokens, records, generator, device).to(dtype)
            shape = (records, channels // 2 + channels // 16)
            inputs["before"] = random_cache(shape, generator, device)
            out = {"cache": (shape, torch.uint8)}
            if tokens != 5:
                out["normed"] = ((tokens, channels), _BF16)
            yield Case("%dx%d into %d, %s" % (tokens, channels, records, dtype), inputs, {"eps": 1e-20}, out)


def _index_key_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """The release's keys in blocks of 64 and 128 entries, narrow and wide ones."""
    for tokens, blocks, entries, channels, pairs in (
        (40, 3, 64, 128, 32),
        (9, 2, 128, 128, 32),
        (6, 5, 4, 32, 8),
        (5, 2, 8, 512, 32),
    ):
        inputs = row_inputs((tokens, channels), pairs, generator, device)
        dtype = torch.int32 if tokens == 9 else torch.int64
        inputs["slots"] = random_slots(tokens, blocks * entries, generator, device).to(dtype)
        shape = (blocks, entries * (channels // 2 + channels // 32))
        inputs["before"] = random_cache(shape, generator, device)
        label = "%dx%d into %d blocks of %d" % (tokens, channels, blocks, entries)
        yield Case(label, inputs, {"eps": 1e-20, "entries": entries}, {"cache": (shape, torch.uint8)})


def _pair_inputs(groups: int, channels: int, generator: torch.Generator, device: str) -> Tensors:
    gates = torch.randn(2 * groups, channels, generator=generator) * 4.0
    values = torch.randn(2 * groups, channels, generator=generator)
    gates[1, :8] = gates[0, :8]  # equal gates
    gates[0, 8:16] += 200.0  # a light share of nothing
    return {"gates": gates.to(device), "values": values.to(device)}


def _pair_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for groups, channels in ((17, 512), (3, 64), (5, 264)):
        inputs = _pair_inputs(groups, channels, generator, device)
        yield Case("%d pairs of %d" % (groups, channels), inputs, {}, {"latent": ((groups, channels), _BF16)})


def _pair_entry_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Codes may differ where a latent rounds the other way, so the cache is compared as numbers."""
    for groups, records, channels, pairs in ((17, 24, 512, 32), (5, 5, 64, 8)):
        inputs = {**row_inputs((groups, channels), pairs, generator, device)}
        del inputs["x"]
        inputs.update(_pair_inputs(groups, channels, generator, device))
        inputs["slots"] = random_slots(groups, records, generator, device)
        shape = (records, channels // 2 + channels // 16)
        inputs["before"] = random_cache(shape, generator, device)
        out = {"cache": (shape, torch.uint8), "normed": ((groups, channels), _BF16)}
        yield Case("%d pairs of %d into %d" % (groups, channels, records), inputs, {"eps": 1e-20}, out)


def _sizes(x: torch.Tensor, freqs: torch.Tensor, cache: torch.Tensor) -> tuple[int, int, int, int]:
    return (x.shape[0], x.shape[1], freqs.numel(), cache.shape[0])


def _entry_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, freqs, slots, cache = inputs["x"], inputs["freqs"], inputs["slots"], cache_of(inputs, outputs)
    words = (x, inputs["weight"], inputs["positions"], freqs, slots, outputs.get("normed"), cache)
    kind = int(slots.dtype == torch.int64)
    launch(module, "rows_entry", *words, *_sizes(x, freqs, cache), kind, float(scalars["eps"]))


def _index_key_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, freqs, slots, cache = inputs["x"], inputs["freqs"], inputs["slots"], cache_of(inputs, outputs)
    words = (x, inputs["weight"], inputs["positions"], freqs, slots, cache)
    sizes = (*_sizes(x, freqs, cache), int(scalars["entries"]), int(slots.dtype == torch.int64))
    launch(module, "rows_index_key", *words, *sizes, float(scalars["eps"]))


def _pair_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    latent = outputs["latent"]
    groups, channels = latent.shape
    launch(module, "compressor_pair", inputs["gates"], inputs["values"], latent, groups, channels)


def _pair_entry_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    freqs, slots, cache = inputs["freqs"], inputs["slots"], cache_of(inputs, outputs)
    gates, values = inputs["gates"], inputs["values"]
    words = (gates, values, inputs["weight"], inputs["positions"], freqs, slots, outputs.get("normed"), cache)
    shape = (slots.shape[0], gates.shape[1], freqs.numel(), cache.shape[0])
    kind = int(slots.dtype == torch.int64)
    launch(module, "compressor_pair_entry", *words, *shape, kind, float(scalars["eps"]))


_ROWS = Argument("x", "[T, C], C a multiple of 64, at most 512", ("bfloat16",))
_WEIGHT = Argument("weight", "[C]", ("bfloat16",))
_EPS = {"eps": "added to the mean square"}
_ENTRY = "RMSNorm, rounded to bf16; rotation; FP4 with an E4M3 scale per 16: C / 2 codes, C / 16 scales at a slot; "
_RECORDS = "[S, C / 2 + C / 16]"
_TIES = "halfway rounds to the even code"


def _entry_outputs(tolerance: float | None) -> tuple[Argument, ...]:
    return (
        Argument("before", _RECORDS + "; absent: what cache holds", ("uint8",), optional=True),
        Argument("normed", "[T, C], of every row", ("bfloat16",), "out", tolerance, optional=True),
        Argument("cache", _RECORDS, ("uint8",), "out", tolerance),
    )


register(
    Op(
        Contract(
            "rows.entry",
            _ENTRY + ORDER,
            (_ROWS, _WEIGHT, POSITIONS, FREQS, SLOTS, *_entry_outputs(None)),
            _EPS,
            SOURCE,
            ties=_TIES,
            batch="T",
        ),
        _entry_reference,
        _entry_cases,
        {"cuda": _entry_native},
    )
)
_PAGES = "[N, entries * (C / 2 + C / 32)], codes of all entries of a block, then their scales"
register(
    Op(
        Contract(
            "rows.index_key",
            "RMSNorm, rotation, FP4 with a power-of-two scale per 32, into a paged index cache; " + ORDER,
            (
                Argument("x", "[T, C], C a multiple of 32, at most 512", ("bfloat16",)),
                _WEIGHT,
                POSITIONS,
                FREQS,
                Argument("slots", "[T], distinct; entry s % entries of block s / entries", ("int32", "int64")),
                Argument("before", _PAGES, ("uint8",), optional=True),
                Argument("cache", _PAGES, ("uint8",), "out"),
            ),
            {**_EPS, "entries": "of a block, a multiple of 4"},
            SOURCE,
            ties=_TIES,
            batch="T",
        ),
        _index_key_reference,
        _index_key_cases,
        {"cuda": _index_key_native},
    )
)
_PAIRS = tuple(Argument(name, "[2 * T, C], rows 2j and 2j + 1", ("float32",)) for name in ("gates", "values"))
_PAIR = "per channel, softmax of two gates times two values, rounded to bf16"
register(
    Op(
        Contract(
            "compressor.pair",
            _PAIR,
            (*_PAIRS, Argument("latent", "[T, C], C a multiple of 8", ("bfloat16",), "out")),
            {},
            "Token compression of ratio 2: two tokens, one latent",
            tolerance=1e-4,  # an exponential off by two places moves a few roundings
            batch="T",
        ),
        _pair_reference,
        _pair_cases,
        {"cuda": _pair_native},
    )
)
register(
    Op(
        Contract(
            "compressor.pair_entry",
            _PAIR + "; then rows.entry of it, without the latent in memory",
            (*_PAIRS, _WEIGHT, POSITIONS, FREQS, SLOTS, *_entry_outputs(None)),
            _EPS,
            SOURCE,
            tolerance=2e-2,  # of bytes: a rounding of a latent may move a code, and seldom a scale
            ties=_TIES,
            batch="T",
        ),
        _pair_entry_reference,
        _pair_entry_cases,
        {"cuda": _pair_entry_native},
    )
)
