"""RMSNorm with fp32 statistics; the weight multiplies before the one rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``w * x / sqrt(mean(x^2) + eps)`` over the last axis. ``x`` [..., D], ``weight`` [D]; the dtype of ``x`` out."""
    values = wide(x)
    return (wide(weight) * values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


_FLOATS = ("bfloat16", "float32", "float64")


def _reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return {"out": rms_norm(inputs["x"], inputs["weight"], scalars["eps"])}


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Release widths; rows of very different size, one of zeros, which stays zero."""
    for rows, width, dtype in ((1, 128, torch.float32), (5, 512, torch.bfloat16), (3, 5120, torch.float32)):
        x = normal((rows, width), generator, device)
        x = (x * 10.0 ** torch.arange(rows, device=device)[:, None].sub(2)).to(dtype)
        x[rows - 1] = 0.0 if rows > 1 else x[rows - 1]
        inputs = {"x": x, "weight": normal((width,), generator, device)}
        yield Case("%dx%d %s" % (rows, width, dtype), inputs, {"eps": 1e-20}, {"out": ((rows, width), dtype)})


register(
    Op(
        Contract(
            "norm.rms_norm",
            "out = weight * x / sqrt(mean(x^2) + eps), one rounding",
            (
                Argument("x", "[T, D]", _FLOATS),
                Argument("weight", "[D]", _FLOATS),
                Argument("out", "[T, D]", _FLOATS, "out"),
            ),
            {"eps": "added to the mean square; the released model has 1e-20"},
            "Root mean square layer normalization, arXiv:1910.07467",
            tolerance=4e-3,  # one rounding to bf16; fp32 is far below
        ),
        _reference,
        _cases,
    )
)
