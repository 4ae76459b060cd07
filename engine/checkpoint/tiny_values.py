"""Random values of a tiny checkpoint, from a seed and a tensor's name alone: the same bytes on every machine.

Bits come from SHAKE-128; a normal draw is one of 4096 quantiles. Codes are made so that neighbouring scale blocks have
different scales: a transposed or shifted scale changes every value, and no test can miss it.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import cache
from statistics import NormalDist

import torch

from deepinfer.engine.checkpoint.inventory import TABLES, Tensor, scale_name
from deepinfer.engine.ops.dequant import GROUP, e2m1_values

QUANTILES = 4096
LOUD_EXPERT, LOUDNESS = 1, 5.0  # its activations reach the clamps of SwiGLU
_NORM = re.compile(r"norm\d?\.weight$|\.[qk]_weight$")


def draw(tensor: Tensor, seed: int) -> dict[str, torch.Tensor]:
    """``tensor`` and, if it is codes, its scale, by name, in the dtypes in which they are stored."""
    if tensor.dtype == "F8_E4M3":
        return _fp8(tensor, seed, 1 if tensor.part == TABLES else GROUP)
    if tensor.dtype == "I8":
        return _fp4(tensor, seed)
    mean, sigma = _moments(tensor)
    values = mean + sigma * _normal(_bits(seed, tensor.name, 2 * math.prod(tensor.shape))).reshape(tensor.shape)
    if re.search(r"hc_\w+_scale$", tensor.name):
        values = values.clamp(0.5, 1.5)
    return {tensor.name: values.to(torch.float32 if tensor.dtype == "F32" else torch.bfloat16)}


def _moments(tensor: Tensor) -> tuple[float, float]:
    """Mean and standard deviation by what the tensor is for; matrices keep the size of what goes through them."""
    name = tensor.name
    if _NORM.search(name):
        return 1.0, 0.1
    if re.search(r"hc_\w+_fn$", name):
        return 0.0, 0.5 / math.sqrt(tensor.shape[-1])
    if re.search(r"hc_\w+_base$", name):
        return 0.0, 0.5
    if re.search(r"hc_\w+_scale$", name):
        return 1.0, 0.3
    if name.endswith((".bias", ".bias_vl")):
        return 0.0, 0.1
    if name.startswith("image_") or name.endswith(("embed.weight", "attn_sink")):
        return 0.0, 1.0
    columns = tensor.shape[-1] * (2 if tensor.dtype == "I8" else 1)
    loud = re.search(r"experts\.%d\.w[13]\." % LOUD_EXPERT, name)
    return 0.0, (LOUDNESS if loud else 1.0) / math.sqrt(columns)


def _bits(seed: int, name: str, count: int) -> torch.Tensor:
    """uint8 [count]."""
    stream = hashlib.shake_128(b"deepinfer tiny %d %s" % (seed, name.encode())).digest(count)
    return torch.frombuffer(bytearray(stream), dtype=torch.uint8)


@cache
def _quantiles() -> torch.Tensor:
    """fp64 [4096]: midpoints of equal slices of the standard normal distribution."""
    normal = NormalDist()
    return torch.tensor(
        [normal.inv_cdf((slice_ + 0.5) / QUANTILES) for slice_ in range(QUANTILES)], dtype=torch.float64
    )


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """fp64 [n] from uint8 [2 n]."""
    pairs = bits.view(-1, 2).long()
    return _quantiles()[(pairs[:, 0] + 256 * pairs[:, 1]) % QUANTILES]


def _split(sigma: float) -> tuple[float, int]:
    """``sigma`` as m * 2^k with m in [1, 2)."""
    mantissa, exponent = math.frexp(sigma)
    return 2.0 * mantissa, exponent - 1


def _fp8(tensor: Tensor, seed: int, block_rows: int) -> dict[str, torch.Tensor]:
    """E4M3 codes and E8M0 scales; a block's codes are 2^0 to 2^5 times as large, its scale as much smaller."""
    rows, columns = tensor.shape
    mantissa, exponent = _split(_moments(tensor)[1])
    blocks = (-(-rows // block_rows), columns // GROUP)
    shift = (_bits(seed, tensor.name + " scale", math.prod(blocks)) % 6).view(blocks).long()
    spread = shift.repeat_interleave(block_rows, 0)[:rows].repeat_interleave(GROUP, 1)
    values = _normal(_bits(seed, tensor.name, 2 * rows * columns)).view(rows, columns) * mantissa
    codes = (values * torch.pow(2.0, spread.double())).to(torch.float32).to(torch.float8_e4m3fn)
    scale = (127 + exponent - shift).to(torch.uint8).view(torch.float8_e8m0fnu)
    return {tensor.name: codes, scale_name(tensor.name): scale}


def _fp4(tensor: Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Packed E2M1 codes and E8M0 scales of 32; groups differ in magnitude by up to 2^2 and in scale by up to 2^3."""
    rows, columns = tensor.shape[0], 2 * tensor.shape[1]
    mantissa, exponent = _split(_moments(tensor)[1])
    bits = _bits(seed, tensor.name + " scale", rows * columns // GROUP).view(rows, columns // GROUP).long()
    shift, louder = bits % 2, (bits >> 1) % 3 - 1
    values = _normal(_bits(seed, tensor.name, 2 * rows * columns)).view(rows, columns) * mantissa
    values = values * torch.pow(2.0, shift.double()).repeat_interleave(GROUP, 1)
    codes = (values.unsqueeze(-1) - e2m1_values()).abs().argmin(-1)  # the first of two as near: deterministic
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    scale = (127 + exponent - shift + louder).to(torch.uint8).view(torch.float8_e8m0fnu)
    return {tensor.name: packed.to(torch.uint8).view(torch.int8), scale_name(tensor.name): scale}
