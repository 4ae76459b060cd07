"""Rotary position embedding on interleaved pairs of the trailing channels, plain or with YaRN frequencies.

YaRN (arXiv:2309.00071): frequencies that turn more than ``beta_fast`` times over the original context stay, those that
turn less than ``beta_slow`` times are divided by ``factor``, a ramp in between. No attention factor is applied here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import integers, normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def frequencies(width: int, base: float, yarn: dict[str, float] | None = None) -> torch.Tensor:
    """fp32 [width / 2]. ``yarn``: factor, beta_fast, beta_slow, original_max_position_embeddings.

    Powers and ramp are fp32, as in the published implementations of this family: a table that is rounded once from fp64
    differs by up to 1.2e-7 relative, which at position 10^6 is an angle of 0.1.
    """
    plain = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if yarn is None:
        return plain

    def turns(count: float) -> float:
        span = yarn["original_max_position_embeddings"] / (2.0 * math.pi * count)
        return width * math.log(span) / (2.0 * math.log(base))

    low = max(math.floor(turns(yarn["beta_fast"])), 0)
    high = min(math.ceil(turns(yarn["beta_slow"])), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return plain / yarn["factor"] * ramp + plain * (1.0 - ramp)


def rotate(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the last ``2 * len(freqs)`` channels of ``x`` [T, ..., C] by ``positions`` [T]; the dtype of ``x`` out.

    Pair i is channels (C - 2F + 2i, C - 2F + 2i + 1); the angle is fp32(position) * fp32(frequency).
    """
    width = 2 * freqs.numel()
    angle = positions.to(torch.float32)[:, None] * freqs.to(positions.device, torch.float32)
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (freqs.numel(),)
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    if inverse:
        sin = -sin
    kept, turned = x[..., :-width], wide(x[..., -width:])
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([kept, pairs.to(x.dtype)], dim=-1)


_FLOATS = ("bfloat16", "float32", "float64")
_YARN = {"factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 65536.0}


def _reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return {"out": rotate(inputs["x"], inputs["positions"], inputs["freqs"], inverse=bool(scalars["inverse"]))}


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Both ways, with and without YaRN, up to the longest context."""
    for heads, width, yarn in ((1, 512, None), (4, 128, _YARN)):
        for inverse in (0, 1):
            inputs = {
                "x": normal((6, heads, width), generator, device),
                "positions": integers((6,), 0, 1 << 20, generator, device),
                "freqs": frequencies(64, 160000.0 if yarn else 10000.0, yarn).to(device),
            }
            label = "6x%dx%d inverse %d yarn %d" % (heads, width, inverse, yarn is not None)
            yield Case(label, inputs, {"inverse": inverse}, {"out": ((6, heads, width), torch.float32)})


register(
    Op(
        Contract(
            "rope.rotate",
            "pairs (e, o) of the last 2 F channels become (e c - o s, e s + o c) at the angle position * frequency",
            (
                Argument("x", "[T, H, C], C at least 2 F", _FLOATS),
                Argument("positions", "[T]", ("int64",)),
                Argument("freqs", "[F]", ("float32",)),
                Argument("out", "[T, H, C]", _FLOATS, "out"),
            ),
            {"inverse": "1 turns back"},
            "Rotary position embedding, arXiv:2104.09864; YaRN, arXiv:2309.00071",
            tolerance=1e-6,
        ),
        _reference,
        _cases,
    )
)
