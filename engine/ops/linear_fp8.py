"""The linear layer over FP8 weights in 32 x 32 blocks: every projection of the model outside the routed experts.

Formats: OCP 8-bit floating point (E4M3FN) and E8M0 scales; a value is code times 2^(scale - 127). Activations carry one
scale per row and 32 channels. ``groups`` above 1 is the grouped output projection: each run of N / groups outputs
reads its own run of K inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.dequant import GROUP, fp8_reference
from deepinfer.engine.ops.draw import integers
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

AUTO, PORTABLE = 0, 6  # plans; 1 to 5 are tiles that only some devices have
# Rows, outputs, inputs per group, groups: one block; ragged rows and tiles; steps that are not whole.
_SHAPES = (
    (1, 32, 32, 1),
    (3, 64, 96, 1),
    (9, 96, 160, 1),
    (65, 160, 128, 1),
    (130, 288, 256, 1),
    (7, 64, 32, 2),
    (20, 384, 96, 3),
    (70, 1024, 512, 8),
)
_LONG = ((1, 96, 5120, 1), (16, 96, 8192, 1), (33, 96, 2304, 1), (64, 160, 1280, 1))  # widths of the release
# On 132 multiprocessors: one tile of 64 x 64 each; several of 64 x 128; of 128 x 128.
_MANY = ((64, 8448, 288, 1), (64, 16992, 288, 1), (520, 4096, 64, 1))


def linear_fp8_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """``y`` fp64 [M, N]: dequantize both, one matrix product per group.

    ``x_code`` uint8 [M, groups * K], ``x_scale`` uint8 [M, groups * K / 32], ``w_code`` uint8 [N, K], ``w_scale`` uint8
    [N / 32, K / 32].
    """
    groups = int(scalars["groups"])
    x = fp8_reference({"weight": inputs["x_code"], "scale": inputs["x_scale"]}, {"block_rows": 1})["out"]
    w = fp8_reference({"weight": inputs["w_code"], "scale": inputs["w_scale"]}, {"block_rows": GROUP})["out"]
    parts = zip(x.chunk(groups, dim=1), w.chunk(groups, dim=0), strict=True)
    return {"y": torch.cat([rows @ outputs.T for rows, outputs in parts], dim=1)}


def draw_codes(shape: tuple[int, int], generator: torch.Generator, device: str) -> torch.Tensor:
    """uint8: every finite E4M3 code with the same probability."""
    codes = integers(shape, 0, 256, generator, device, torch.uint8)
    codes[(codes & 127) == 127] = 0x35
    return codes


def draw(rows: int, outputs: int, inputs: int, groups: int, generator: torch.Generator, device: str) -> Tensors:
    """Fresh operands: uniform codes; scales over 2^-12 to 2^-3 by block, so that a wrong scale index is seen."""
    wide = groups * inputs
    return {
        "x_code": draw_codes((rows, wide), generator, device),
        "x_scale": integers((rows, wide // GROUP), 115, 125, generator, device, torch.uint8),
        "w_code": draw_codes((outputs, inputs), generator, device),
        "w_scale": integers((outputs // GROUP, inputs // GROUP), 115, 125, generator, device, torch.uint8),
    }


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Every shape by the tile that the shape chooses and by the portable kernel; many tiles; then far scales."""
    for rows, outputs, inputs, groups in (*_SHAPES, *_LONG, *_MANY):
        shape = (rows, outputs, inputs, groups)
        tensors = draw(rows, outputs, inputs, groups, generator, device)
        for dtype in (torch.bfloat16, torch.float32) if shape in _SHAPES else (torch.bfloat16,):
            for plan in (AUTO,) if shape in _MANY else (AUTO, PORTABLE):
                name = str(dtype).rpartition(".")[2]
                label = "%d rows %d x %d, groups %d, plan %d, %s" % (rows, outputs, inputs, groups, plan, name)
                yield Case(label, tensors, {"groups": groups, "plan": plan}, {"y": ((rows, outputs), dtype)})
    for plan in (AUTO, PORTABLE):
        tensors = draw(5, 64, 160, 1, generator, device)
        tensors["x_scale"] = integers((5, 5), 0, 4, generator, device, torch.uint8)
        tensors["w_scale"] = integers((2, 5), 249, 255, generator, device, torch.uint8)
        yield Case("far scales, plan %d" % plan, tensors, {"groups": 1, "plan": plan}, {"y": ((5, 64), torch.float32)})


def _native(module: ModuleType, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    x, w, y = inputs["x_code"], inputs["w_code"], outputs["y"]
    sizes = (x.shape[0], w.shape[0], w.shape[1], int(scalars["groups"]), int(y.dtype == torch.float32))
    launch(module, "linear_fp8", x, inputs["x_scale"], w, inputs["w_scale"], y, *sizes, int(scalars["plan"]))


register(
    Op(
        Contract(
            "linear.fp8",
            "y[m, j] = sum over k of x[m, g * K + k] * w[j, k], g = j // (N / groups); the tensor cores sum blocks of "
            "32 products, then fp32 by ascending block: y = fma(products, 2^(x_scale + w_scale - 254), y)",
            (
                Argument("x_code", "[M, groups * K], E4M3; K a multiple of 32", ("uint8",)),
                Argument("x_scale", "[M, groups * K / 32]", ("uint8",)),
                Argument("w_code", "[N, K], E4M3; N / groups a multiple of 32", ("uint8",)),
                Argument("w_scale", "[N / 32, K / 32]", ("uint8",)),
                Argument("y", "[M, N]", ("bfloat16", "float32"), "out"),
            ),
            {
                "groups": "runs of outputs that read their own run of inputs; 1 for an ordinary layer",
                "plan": "0: the shape chooses the tile; 1 to 5: a tile of sm_90; 6: the portable kernel",
            },
            "OCP 8-bit floating point specification (E4M3FN); E8M0 from OCP microscaling formats 1.0",
            tolerance=8e-3,
            batch="M",
        ),
        linear_fp8_reference,
        _cases,
        {"cuda": _native},
    )
)
