"""The quantizer of rows in Triton: what the choice of CUDA C++ is measured against. Not a bench itself.

Triton reads the parameters, so that only its own annotations may stand there.
"""

import triton
import triton.language as tl


@triton.jit
def _encode(x):  # type: ignore[no-untyped-def]
    """E4M3 codes and the scale byte of fp32 [groups, 32]."""
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-4)
    byte = ((largest * (1.0 / 448.0)).to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    inverse = ((254 - byte) << 23).to(tl.float32, bitcast=True)
    return (x * inverse[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True), byte.to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def fp8(x, codes, scales, groups, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """``block`` groups of 32 channels of a matrix that is read as one line."""
    group = tl.program_id(0) * block + tl.arange(0, block)
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    there = group < groups
    value = tl.load(x + place, mask=there[:, None], other=0.0).to(tl.float32)
    code, byte = _encode(value)
    tl.store(codes + place, code, mask=there[:, None])
    tl.store(scales + group, byte, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def normed_fp8(  # type: ignore[no-untyped-def]
    x, weight, normed, codes, scales, eps, channels: tl.constexpr, block: tl.constexpr
):
    """A row: RMSNorm, the normed row in bf16, and its codes. ``block`` groups hold the row."""
    row = tl.program_id(0)
    group = tl.arange(0, block)
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    there = place < channels
    value = tl.load(x + row * channels + place, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(value * value, axis=1), axis=0) / channels
    scale = tl.load(weight + place, mask=there, other=0.0).to(tl.float32)
    rounded = (scale * value * tl.rsqrt(mean + eps)).to(tl.bfloat16)
    tl.store(normed + row * channels + place, rounded, mask=there)
    code, byte = _encode(rounded.to(tl.float32))
    tl.store(codes + row * channels + place, code, mask=there)
    tl.store(scales + row * (channels // 32) + group, byte, mask=group * 32 < channels)
