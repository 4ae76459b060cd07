"""RMSNorm with fp32 statistics; the weight multiplies before the one rounding."""

from __future__ import annotations

import torch

from deepinfer.engine.ops.precision import wide


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``w * x / sqrt(mean(x^2) + eps)`` over the last axis. ``x`` [..., D], ``weight`` [D]; the dtype of ``x`` out."""
    values = wide(x)
    return (wide(weight) * values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
