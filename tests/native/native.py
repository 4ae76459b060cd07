"""What the tests of the native module share: the module or a skip, and bf16 in numpy.

numpy has no bfloat16, so bf16 arrays are uint16 arrays of its bits, which the module takes as such.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

np: Any = pytest.importorskip("numpy", reason="not run: no numpy")


def native() -> ModuleType:
    """The module deepinfer._native, or a skip of the whole test module."""
    try:
        from deepinfer import _native
    except ImportError:
        pytest.skip("not run: no native module", allow_module_level=True)
    return _native


def e8m0(codes: Any) -> Any:
    """Values in fp64 by definition; code 255 is not for it."""
    return np.exp2(np.asarray(codes, np.float64) - 127)


def e4m3(codes: Any) -> Any:
    """Values in fp64 by definition, NaN for 0x7F and 0xFF."""
    codes = np.asarray(codes, np.int64)
    field, fraction = (codes >> 3) & 15, (codes & 7) / 8
    magnitude = np.where(field == 0, fraction * 2.0**-6, (1 + fraction) * np.exp2(field - 7.0))
    magnitude = np.where((codes & 127) == 127, np.nan, magnitude)
    return np.where(codes & 128, -magnitude, magnitude)


def e2m1(codes: Any) -> Any:
    """Values in fp64 by definition."""
    codes = np.asarray(codes, np.int64)
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7]
    return np.where(codes & 8, -magnitude, magnitude)


def bf16_bits(values: Any) -> Any:
    """Nearest bf16 of fp64 values, ties to even, as uint16 bits; infinity from 2^128 on."""
    values = np.asarray(values, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, -126)
    step = np.exp2(exponent - 7.0)
    with np.errstate(over="ignore"):
        nearest = (np.rint(values / step) * step).astype(np.float32)
    return (nearest.view(np.uint32) >> 16).astype(np.uint16)


def bf16_values(bits: Any) -> Any:
    """bf16 bits as fp32."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def unpacked(packed: Any) -> Any:
    """Codes [rows, cols] of packed FP4 [rows, cols / 2]: the even column is in the low nibble."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
