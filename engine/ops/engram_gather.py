"""Engram on a device: rows of n-grams, table rows out of device or page-locked host memory, and the fused gate.

Table rows stay as they are stored (E4M3 codes and a UE8M0 byte per 32 columns), and feed the FP8 linear like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops import engram
from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

STREAMS = 4
_PRIMES = ((16000057, 16000079), (101, 103), (113, 127))  # of the cases
_NAN_CODE, _NAN_SCALE = 0x7F, 0xFF


def _rows_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """One token after the other, by the definition for a sequence of which it is the last."""
    factors = [int(number) for number in inputs["factors"]]
    primes = tuple(tuple(int(number) for number in row) for row in inputs["primes"])
    history = len(factors) - 1
    found = []
    for place in inputs["places"].tolist():
        window = torch.arange(place - history, place + 1, device=inputs["ids"].device)
        inside = window.clamp_min(0)
        dead = inputs["dead"][inside].bool() | (window < 0)
        found.append(engram.rows(inputs["ids"][inside], dead, history, int(scalars["pad"]), factors, primes))
    return {"rows": torch.cat(found)}


def _gather_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    rows, table, scale = inputs["rows"], inputs["table"], inputs["scale"]
    there = (rows >= 0) & (rows < table.shape[0])
    place = torch.where(there, rows, 0).to(table.device)
    codes, scales = table[place].to(rows.device), scale[place].to(rows.device)
    codes[~there], scales[~there] = _NAN_CODE, _NAN_SCALE
    return {"codes": codes, "scales": scales}


def _inject_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    streams, kv, weight, dead = (inputs[name] for name in ("streams", "kv", "weight", "dead"))
    return {"out": engram.inject(streams, kv[:, :-1], kv[:, -1], weight, dead, scalars["eps"])}


def _rows_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Both layers' multipliers; tokens at the start, after dead ones, and in no order."""
    for layer, count, tokens in ((1, 23, 20), (14, 90, 33), (1, 1, 1)):
        ids = torch.randint(0, 99092, (count,), generator=generator)
        places = torch.randint(0, count, (tokens,), generator=generator)
        inputs = {
            "ids": ids.to(device),
            "dead": (torch.rand(count, generator=generator) < 0.2).to(device),
            "places": places.to(device),
            "factors": torch.tensor(engram.multipliers(layer, 99092, 4), device=device),
            "primes": torch.tensor(_PRIMES, device=device),
        }
        label = "%d tokens of %d, layer %d" % (tokens, count, layer)
        yield Case(label, inputs, {"pad": 2}, {"rows": ((tokens, 6), torch.int64)})


def _gather_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Tables on the device and, on a device, in page-locked host memory; rows that do not exist; a limit of blocks."""
    for tokens, each, width, host, blocks in (
        (33, 24, 256, False, 0),
        (33, 24, 256, True, 0),
        (65, 24, 256, True, 3),
        (5, 4, 32, False, 1),
        (3, 7, 512, False, 0),
    ):
        tables = [
            torch.randint(0, 256, (1999, size), generator=generator).to(torch.uint8) for size in (width, width // 32)
        ]
        rows = torch.randint(0, 1999, (tokens, each), generator=generator)
        rows[0, 0], rows[-1, -1] = -1, 1999
        pinned = host and device != "cpu"
        codes, scale = (table.pin_memory() if pinned else table.to(device) for table in tables)
        inputs = {"table": codes, "scale": scale, "rows": rows.to(device)}
        out = {
            "codes": ((tokens, each, width), torch.uint8),
            "scales": ((tokens, each, width // 32), torch.uint8),
        }
        label = "%dx%d rows of %d, %s, %d blocks" % (tokens, each, width, "host" if host else "device", blocks)
        yield Case(label, inputs, {"blocks": blocks}, out)


def _inject_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Few tokens and many (another kernel), the release's width and ragged ones."""
    for tokens, channels in ((5, 5120), (300, 320), (131, 5120), (3, 72), (130, 5128)):
        shape = (tokens, STREAMS, channels)
        inputs = {
            "streams": torch.randn(shape, generator=generator).bfloat16().to(device),
            "kv": torch.randn(tokens, STREAMS + 1, channels, generator=generator).bfloat16().to(device),
            "weight": torch.randn(STREAMS, channels, generator=generator).to(device),
            "dead": (torch.rand(tokens, generator=generator) < 0.3).to(device),
        }
        out = {"out": (shape, torch.bfloat16)}
        yield Case("%d tokens of 4x%d" % (tokens, channels), inputs, {"eps": 1e-20}, out)


def _rows_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    names = ("ids", "dead", "places", "factors", "primes")
    sizes, heads = inputs["primes"].shape
    shape = (inputs["places"].shape[0], inputs["ids"].shape[0], sizes, heads, int(scalars["pad"]))
    launch(module, "engram_rows", *(inputs[name] for name in names), outputs["rows"], *shape)


def _gather_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    table, scale, rows = inputs["table"], inputs["scale"], inputs["rows"]
    gather(module, rows, table, scale, outputs["codes"], outputs["scales"], blocks=int(scalars["blocks"]))


def gather(
    module: Any,
    rows: torch.Tensor,
    table: torch.Tensor,
    scale: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    blocks: int = 0,
) -> None:
    """Launch the gather on the current stream of ``codes``' device.

    ``table`` uint8 [N, width] and ``scale`` uint8 [N, width / 32] may be views into records of one buffer: only their
    columns must be dense. ``rows`` int64 [T, n], ``codes`` uint8 [T, n, width], ``scales`` uint8 [T, n, width / 32].
    """
    shape = (*codes.shape, table.shape[0], table.stride(0), scale.stride(0), blocks)
    launch(module, "engram_gather", rows, table, scale, codes, scales, *shape)


def _inject_native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    streams, dead = inputs["streams"], inputs["dead"]
    words = (streams, inputs["kv"], inputs["weight"], dead, outputs.get("out", streams))
    launch(module, "engram_inject", *words, streams.shape[0], streams.shape[2], float(scalars["eps"]))


register(
    Op(
        Contract(
            "engram_gather.rows",
            "engram.rows of tokens anywhere in a line of ids: row % prime of a head, plus the primes before it",
            (
                Argument("ids", "[N], compressed token ids", ("int64",)),
                Argument("dead", "[N], where looking back ends", ("bool",)),
                Argument("places", "[T], of the tokens in ids; before place 0 all is dead", ("int64",)),
                Argument("factors", "[G + 1], products with ids below 2^63", ("int64",)),
                Argument("primes", "[G, H], G * H at most 32", ("int64",)),
                Argument("rows", "[T, G * H]", ("int64",), "out"),
            ),
            {"pad": "the id that stands for what is dead"},
            "Engram: n-gram hashing into embedding tables",
            batch="T",
        ),
        _rows_reference,
        _rows_cases,
        {"cuda": _rows_native},
    )
)
register(
    Op(
        Contract(
            "engram_gather.gather",
            "rows of a table as they are stored; a row that does not exist reads NaN codes and scales",
            (
                Argument("rows", "[T, E]", ("int64",)),
                Argument("table", "[N, W], W of 32 to 512, on the device or page-locked", ("uint8",)),
                Argument("scale", "[N, W / 32], like table", ("uint8",)),
                Argument("codes", "[T, E, W], E4M3", ("uint8",), "out"),
                Argument("scales", "[T, E, W / 32], UE8M0", ("uint8",), "out"),
            ),
            {"blocks": "at most so many thread blocks; 0: no limit"},
            "Engram: embedding tables in FP8 with a power-of-two scale per row and 32 columns",
            batch="T",
        ),
        _gather_reference,
        _gather_cases,
        {"cuda": _gather_native},
    )
)
register(
    Op(
        Contract(
            "engram_gather.inject",
            "engram.inject of keys and value as one linear gives them; fp32 sums in a fixed order (engram.h)",
            (
                Argument("streams", "[T, 4, D], D a multiple of 8, at most 8192", ("bfloat16",), "inout"),
                Argument("kv", "[T, 5, D], four keys and the value", ("bfloat16",)),
                Argument("weight", "[4, D]", ("float32",)),
                Argument("dead", "[T]", ("bool",)),
                Argument("out", "[T, 4, D]; absent: streams itself changes", ("bfloat16",), "out", optional=True),
            ),
            {"eps": "added to the mean squares"},
            "Engram: gated injection of the looked-up value",
            tolerance=5e-4,  # some roundings to bf16 fall on the other side
            batch="T",
        ),
        _inject_reference,
        _inject_cases,
        {"cuda": _inject_native},
    )
)
