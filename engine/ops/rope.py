"""Rotary position embedding on interleaved pairs of the trailing channels, plain or with YaRN frequencies.

YaRN (arXiv:2309.00071): frequencies that turn more than ``beta_fast`` times over the original context stay, those that
turn less than ``beta_slow`` times are divided by ``factor``, a ramp in between. No attention factor is applied here.
"""

from __future__ import annotations

import math

import torch

from deepinfer.engine.ops.precision import wide


def frequencies(width: int, base: float, yarn: dict[str, float] | None = None) -> torch.Tensor:
    """fp32 [width / 2]. ``yarn``: factor, beta_fast, beta_slow, original_max_position_embeddings."""
    index = torch.arange(0, width, 2, dtype=torch.float64)
    plain = base ** (-index / width)
    if yarn is None:
        return plain.float()

    def turns(count: float) -> float:
        span = yarn["original_max_position_embeddings"] / (2.0 * math.pi * count)
        return width * math.log(span) / (2.0 * math.log(base))

    low = max(math.floor(turns(yarn["beta_fast"])), 0)
    high = min(math.ceil(turns(yarn["beta_slow"])), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return (plain / yarn["factor"] * ramp + plain * (1.0 - ramp)).float()


def rotate(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the last ``2 * len(freqs)`` channels of ``x`` [T, ..., C] by ``positions`` [T]; the dtype of ``x`` out.

    Pair i is channels (C - 2F + 2i, C - 2F + 2i + 1); the angle is fp32(position) * fp32(frequency).
    """
    width = 2 * freqs.numel()
    angle = positions.to(torch.float32)[:, None] * freqs.to(positions.device)
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (freqs.numel(),)
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    if inverse:
        sin = -sin
    kept, turned = x[..., :-width], wide(x[..., -width:])
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([kept, pairs.to(x.dtype)], dim=-1)
