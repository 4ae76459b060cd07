"""Dequantization of stored weights: FP8 with 32x32 or per-row scales, and MXFP4.

The model of how an op is added: contract, reference, cases, native versions. Formats: OCP 8-bit floating point
(E4M3FN), OCP microscaling (E2M1 elements, E8M0 scales of 32); a value is code times 2^(scale - 127), exact in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

GROUP = 32  # columns that share a scale
_SHAPES = ((1, 32), (3, 64), (32, 32), (33, 96), (64, 4096), (257, 512))
_OUTPUTS = (torch.bfloat16, torch.float32)


def e4m3_values() -> torch.Tensor:
    """fp64 [256]: the value of each E4M3FN byte (sign 1, exponent 4 with bias 7, mantissa 3); NaN at 0x7F and 0xFF."""
    code = torch.arange(256, dtype=torch.int64)
    sign = 1.0 - 2.0 * (code >> 7).double()
    exponent, mantissa = (code >> 3) & 15, (code & 7).double()
    normal = (1.0 + mantissa / 8.0) * torch.pow(2.0, (exponent - 7).double())
    value = sign * torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    value[(code & 127) == 127] = float("nan")
    return value


def e2m1_values() -> torch.Tensor:
    """fp64 [16]: the value of each E2M1 nibble."""
    half = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    return torch.cat([half, -half])


def _scales(scale: torch.Tensor, rows: int, block_rows: int) -> torch.Tensor:
    """fp64 [rows, columns]: 2^(byte - 127), each byte spread over its block."""
    power = torch.pow(2.0, scale.to(torch.float64) - 127.0)
    return power.repeat_interleave(block_rows, 0)[:rows].repeat_interleave(GROUP, 1)


def fp8_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``weight`` uint8 [R, C], ``scale`` uint8 [ceil(R / block_rows), C / 32] -> ``out`` fp64 [R, C]."""
    weight = inputs["weight"]
    value = e4m3_values().to(weight.device)[weight.long()]
    return {"out": value * _scales(inputs["scale"], weight.shape[0], int(scalars["block_rows"]))}


def fp4_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``weight`` uint8 [R, C / 2] (low nibble: even column), ``scale`` uint8 [R, C / 32] -> ``out`` fp64 [R, C]."""
    packed = inputs["weight"].long()
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    value = e2m1_values().to(packed.device)[codes]
    return {"out": value * _scales(inputs["scale"], packed.shape[0], 1)}


def _random_bytes(shape: tuple[int, ...], generator: torch.Generator, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


def fp8_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Both block heights, ragged rows, every finite code; scales over the range in which bf16 is normal, and beyond."""
    for rows, columns in _SHAPES:
        for block_rows in (32, 1):
            weight = _random_bytes((rows, columns), generator)
            weight[(weight & 127) == 127] = 0x35  # NaN codes are refused; they have tests of their own
            for low, high in ((100, 140), (0, 255)):
                scale = _random_bytes((-(-rows // block_rows), columns // GROUP), generator, low, high)
                for dtype in _OUTPUTS:
                    label = "%dx%d block %d scales %d..%d %s" % (rows, columns, block_rows, low, high - 1, dtype)
                    inputs = {"weight": weight.to(device), "scale": scale.to(device)}
                    yield Case(label, inputs, {"block_rows": block_rows}, {"out": ((rows, columns), dtype)})


def fp4_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Every nibble, ragged rows, all scales but NaN."""
    for rows, columns in _SHAPES:
        weight = _random_bytes((rows, columns // 2), generator)
        for low, high in ((100, 140), (0, 255)):
            scale = _random_bytes((rows, columns // GROUP), generator, low, high)
            for dtype in _OUTPUTS:
                label = "%dx%d scales %d..%d %s" % (rows, columns, low, high - 1, dtype)
                inputs = {"weight": weight.to(device), "scale": scale.to(device)}
                yield Case(label, inputs, {}, {"out": ((rows, columns), dtype)})


def _stream(tensor: torch.Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def _fp8_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    weight, out = inputs["weight"], outputs["out"]
    module.dequant_fp8_block(weight, inputs["scale"], out, scalars["block_rows"], stream=_stream(weight))


def _fp4_native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    weight, out = inputs["weight"], outputs["out"]
    module.dequant_fp4_row(weight, inputs["scale"], out, stream=_stream(weight))


_OUT = Argument("out", "[R, C]", ("bfloat16", "float32"), "out")

register(
    Op(
        Contract(
            "dequant.fp8_block",
            "out[i, j] = e4m3(weight[i, j]) * 2^(scale[i // block_rows, j // 32] - 127)",
            (
                Argument("weight", "[R, C], C a multiple of 32", ("uint8",)),
                Argument("scale", "[ceil(R / block_rows), C / 32]", ("uint8",)),
                _OUT,
            ),
            {"block_rows": "rows that share a scale: 32 for linear weights, 1 for Engram tables"},
            "OCP 8-bit floating point specification (E4M3FN); E8M0 from OCP microscaling formats 1.0",
        ),
        fp8_reference,
        fp8_cases,
        {"cpu": _fp8_native, "cuda": _fp8_native},
    )
)
register(
    Op(
        Contract(
            "dequant.fp4_row",
            "out[i, j] = e2m1(nibble(weight, i, j)) * 2^(scale[i, j // 32] - 127)",
            (
                Argument("weight", "[R, C / 2], low nibble is the even column", ("uint8",)),
                Argument("scale", "[R, C / 32]", ("uint8",)),
                _OUT,
            ),
            {},
            "OCP microscaling formats 1.0 (MXFP4)",
        ),
        fp4_reference,
        fp4_cases,
        {"cpu": _fp4_native, "cuda": _fp4_native},
    )
)
