"""Compression of two neighboring tokens into one latent, by a softmax per channel over the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    pass


def pair_up(gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """fp32 [G, C] out of fp32 gates and values [2 G, C]: rows 2j and 2j + 1 make latent j."""
    pairs = gates.shape[0] // 2
    gate, value = gates.reshape(pairs, 2, gates.shape[1]), values.reshape(pairs, 2, values.shape[1])
    return (torch.softmax(gate, dim=1) * value).sum(1)


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    inputs = {name: normal((10, 96), generator, device) for name in ("gates", "values")}
    yield Case("5 pairs of 96", inputs, {}, {"out": ((5, 96), torch.float32)})


register(
    Op(
        Contract(
            "compressor.pair_up",
            "out_j = sum over i in (0, 1) of softmax_i(gates[2 j + i]) * values[2 j + i], per channel",
            (
                Argument("gates", "[2 * G, C]", ("float32", "float64")),
                Argument("values", "[2 * G, C]", ("float32", "float64")),
                Argument("out", "[G, C]", ("float32", "float64"), "out"),
            ),
            {},
            "Token compression of ratio 2: two tokens, one latent",
            tolerance=1e-6,
        ),
        lambda inputs, scalars: {"out": pair_up(inputs["gates"], inputs["values"])},
        _cases,
    )
)
