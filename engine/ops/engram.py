"""Engram: n-gram hashing into embedding tables, and the gate that lets the looked-up value into the streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import integers, normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def multipliers(layer_id: int, vocabulary: int, count: int) -> list[int]:
    """The odd 64-bit multipliers of a layer; ``vocabulary`` is the size of the compressed token map."""
    bound = max(1, (2**63 - 1) // vocabulary // 2)
    drawn = np.random.default_rng(10007 * layer_id).integers(0, bound, size=count, dtype=np.int64)
    return [int(number) * 2 + 1 for number in drawn]


def rows(
    ids: torch.Tensor,
    dead: torch.Tensor,
    history: int,
    pad: int,
    factors: list[int],
    primes: tuple[tuple[int, ...], ...],
) -> torch.Tensor:
    """int64 [T, sizes * heads]: table rows of the last T tokens of ``ids``.

    ``ids`` int64 [history + T] are compressed token ids, ``dead`` bool of the same shape marks image tokens and places
    before the start. Looking back from a token (itself included), the first dead place and all before it read ``pad``.
    Order: n-gram size 2 with every head, then 3, and so on; each (size, head) has its own rows.
    """
    count = ids.shape[0] - history
    alive = torch.ones(count, dtype=torch.bool, device=ids.device)
    mixed = torch.zeros(count, dtype=torch.int64, device=ids.device)
    found = []
    offset = 0
    for back in range(len(factors)):
        here = slice(history - back, history - back + count)
        alive = alive & ~dead[here]
        token = torch.where(alive, ids[here], torch.full_like(ids[here], pad))
        mixed = mixed ^ (token * factors[back])  # below 2^63 by the bound on the multipliers
        if back:
            for prime in primes[back - 1]:
                found.append(mixed % prime + offset)
                offset += prime
    return torch.stack(found, dim=1)


def inject(
    streams: torch.Tensor,
    keys: torch.Tensor,
    value: torch.Tensor,
    weight: torch.Tensor,
    dead: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """``streams + sigmoid(signed sqrt(dot)) * value`` [T, n, D]; dead tokens pass unchanged.

    ``keys`` [T, n, D], ``value`` [T, D], ``weight`` [n, D] (query times key weights), ``dead`` bool [T]. ``dot`` is the
    product of both sides after RMS normalization, times D^-0.5.
    """
    stream, key = wide(streams), wide(keys)
    dot = (stream * weight * key).sum(-1)
    dot = dot * torch.rsqrt(stream.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    dot = dot * stream.shape[-1] ** -0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot)).unsqueeze(-1)
    mixed = (stream + gate * wide(value).unsqueeze(1)).to(streams.dtype)
    return torch.where(dead[:, None, None], streams, mixed)


_FLOATS = ("bfloat16", "float32", "float64")
_PRIMES = ((101, 103), (107, 109), (113, 127))  # of the cases: small tables, two heads


def _rows(inputs: Tensors, scalars: Scalars) -> Tensors:
    factors = multipliers(int(scalars["layer"]), int(scalars["vocabulary"]), 4)
    ids, dead = inputs["ids"], inputs["dead"]
    return {"out": rows(ids, dead, 3, int(scalars["pad"]), factors, _PRIMES)}


def _row_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    for layer in (1, 14):
        inputs = {
            "ids": integers((23,), 0, 99092, generator, device),
            "dead": torch.rand(23, generator=generator).to(device) < 0.2,
        }
        scalars: Scalars = {"layer": layer, "vocabulary": 99092, "pad": 2}
        yield Case("20 tokens, layer %d" % layer, inputs, scalars, {"out": ((20, 6), torch.int64)})


register(
    Op(
        Contract(
            "engram.rows",
            "table rows of n-grams of 2 to 4 tokens: products xor-ed together, modulo a prime of each head",
            (
                Argument("ids", "[3 + T]", ("int64",)),
                Argument("dead", "[3 + T]", ("bool",)),
                Argument("out", "[T, 6]", ("int64",), "out"),
            ),
            {"layer": "seeds the multipliers", "vocabulary": "of the compressed token map", "pad": "compressed id"},
            "Engram: n-gram hashing into embedding tables",
        ),
        _rows,
        _row_cases,
    )
)


def _inject(inputs: Tensors, scalars: Scalars) -> Tensors:
    streams, keys, value = inputs["streams"], inputs["keys"], inputs["value"]
    return {"out": inject(streams, keys, value, inputs["weight"], inputs["dead"], scalars["eps"])}


def _inject_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    inputs = {
        "streams": normal((6, 4, 96), generator, device),
        "keys": normal((6, 4, 96), generator, device),
        "value": normal((6, 96), generator, device),
        "weight": normal((4, 96), generator, device),
        "dead": torch.rand(6, generator=generator).to(device) < 0.4,
    }
    yield Case("6x4x96", inputs, {"eps": 1e-20}, {"out": ((6, 4, 96), torch.float32)})


register(
    Op(
        Contract(
            "engram.inject",
            "out = streams + sigmoid(signed square root of the normalized product) * value; dead tokens pass",
            (
                Argument("streams", "[T, n, D]", _FLOATS),
                Argument("keys", "[T, n, D]", _FLOATS),
                Argument("value", "[T, D]", _FLOATS),
                Argument("weight", "[n, D]", ("float32", "float64")),
                Argument("dead", "[T]", ("bool",)),
                Argument("out", "[T, n, D]", _FLOATS, "out"),
            ),
            {"eps": "added to the mean squares"},
            "Engram: gated injection of the looked-up value",
            tolerance=1e-4,  # the square root is steep at zero
        ),
        _inject,
        _inject_cases,
    )
)
