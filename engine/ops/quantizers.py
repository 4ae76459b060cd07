"""The three quantizers that are part of the trained model, as quantize-then-dequantize in torch fp32.

Order: block maximum, floor, product with the fp32 reciprocal, scale rounding, division, clamp, rounding, product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    pass


_E2M1_EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # ties go to the even code
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """``2^ceil(log2 x)`` for positive fp32, on the bits: the exponent, plus one if there is a mantissa."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return torch.ldexp(torch.ones_like(x), exponent)


def _round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 value of each element of [-6, 6]; halfway goes to the even code."""
    size = x.abs()
    code = torch.zeros_like(size, dtype=torch.int64)
    for number, edge in enumerate(_E2M1_EDGES):
        up = size > edge if number % 2 == 0 else size >= edge
        code += up.to(torch.int64)
    values = torch.tensor(_E2M1_VALUES, dtype=x.dtype, device=x.device)[code]
    return torch.copysign(values, x)


def _blocks(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // width, width)


def qdq_fp8_32(x: torch.Tensor) -> torch.Tensor:
    """FP8 with one power-of-two scale per 32 channels of the last axis."""
    blocks = _blocks(x, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = _power_of_two_above(largest * torch.tensor(1.0 / 448.0, dtype=torch.float32))
    codes = (blocks / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()
    return (codes * scale).flatten(-2).to(x.dtype)


def qdq_fp4_32(x: torch.Tensor) -> torch.Tensor:
    """FP4 with one power-of-two scale per 32 channels: index queries and keys."""
    blocks = _blocks(x, 32)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0**-126)
    scale = _power_of_two_above(largest * torch.tensor(1.0 / 6.0, dtype=torch.float32))
    return (_round_e2m1((blocks / scale).clamp(-6.0, 6.0)) * scale).flatten(-2).to(x.dtype)


def qdq_fp4_16(x: torch.Tensor) -> torch.Tensor:
    """FP4 with one E4M3 scale per 16 channels: the compressed key-value entries."""
    blocks = _blocks(x, 16)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0**-9)
    scale = (largest * torch.tensor(1.0 / 6.0, dtype=torch.float32)).clamp_max(448.0).to(torch.float8_e4m3fn).float()
    return (_round_e2m1((blocks / scale).clamp(-6.0, 6.0)) * scale).flatten(-2).to(x.dtype)


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Blocks of very different size, one of zeros, and values on the edges of codes."""
    x = normal((7, 96), generator, device) * 10.0 ** torch.arange(7, device=device)[:, None].sub(4)
    x[3, :32] = 0.0
    x[4, :16] = torch.tensor([*_E2M1_EDGES, 6.0, *(-edge for edge in _E2M1_EDGES), -6.0], device=device)
    for dtype in (torch.float32, torch.bfloat16):
        yield Case("7x96 %s" % dtype, {"x": x.to(dtype)}, {}, {"out": ((7, 96), dtype)})


for _name, _quantizer, _group, _scale in (
    ("fp8_32", qdq_fp8_32, 32, "power-of-two"),
    ("fp4_32", qdq_fp4_32, 32, "power-of-two"),
    ("fp4_16", qdq_fp4_16, 16, "E4M3"),
):
    register(
        Op(
            Contract(
                "quantize." + _name,
                "out = x rounded to %s with one %s scale per %d channels" % (_name[:3], _scale, _group),
                (
                    Argument("x", "[T, C], C a multiple of %d" % _group, ("bfloat16", "float32", "float64")),
                    Argument("out", "[T, C]", ("bfloat16", "float32", "float64"), "out"),
                ),
                {},
                "OCP microscaling formats 1.0; OCP 8-bit floating point specification",
                ties="halfway between two codes goes to the even one",
            ),
            lambda inputs, scalars, quantizer=_quantizer: {"out": quantizer(inputs["x"])},  # type: ignore[misc]
            _cases,
        )
    )
