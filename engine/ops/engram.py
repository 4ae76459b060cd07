"""Engram: n-gram hashing into embedding tables, and the gate that lets the looked-up value into the streams."""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.ops.precision import wide


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
