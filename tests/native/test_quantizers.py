"""The run-time quantizers against fp64 definitions; csrc/tests/quantize_test.cpp is exhaustive."""

from __future__ import annotations

import pytest
from native import bf16_bits, bf16_values, e2m1, e4m3, e8m0, native, np, unpacked

_native = native()

# name -> columns a block, floor of the maximum, largest code value, scale is E4M3
QUANTIZERS = {
    "fp8_32": (32, np.float32(1e-4), 448.0, False),
    "fp4_32": (32, np.float32(6 * 2.0**-126), 6.0, False),
    "fp4_16": (16, np.float32(6 * 2.0**-9), 6.0, True),
}


def nearest(values, magnitudes):
    """Index of the nearest magnitude, ties to the even index, saturating."""
    upper = np.clip(np.searchsorted(magnitudes, values), 1, len(magnitudes) - 1)
    down, up = values - magnitudes[upper - 1], magnitudes[upper] - values
    take_upper = (up < down) | ((up == down) & (upper % 2 == 0))
    return np.where(take_upper, upper, upper - 1)


def wanted(name, x):
    """(codes, scale codes, values) of fp32 [rows, cols], by definition."""
    block, floor, largest, e4m3_scale = QUANTIZERS[name]
    blocks = x.astype(np.float64).reshape(x.shape[0], -1, block)
    amax = np.maximum(np.abs(blocks).max(-1), floor)
    product = (amax * np.float64(np.float32(1 / largest))).astype(np.float32).astype(np.float64)
    if e4m3_scale:
        scale_codes = nearest(np.minimum(product, 448), e4m3(np.arange(127)))
        scale = e4m3(scale_codes)
    else:
        fraction, exponent = np.frexp(product)
        scale_codes = exponent - (fraction == 0.5) + 127
        scale = e8m0(scale_codes)
    quotient = (blocks / scale[..., None]).astype(np.float32).astype(np.float64)
    value, count, sign = (e4m3, 127, 128) if largest == 448 else (e2m1, 8, 8)
    codes = nearest(np.abs(quotient), value(np.arange(count)))
    codes = codes + np.where(np.signbit(quotient), sign, 0)
    return codes.reshape(x.shape), scale_codes, (value(codes) * scale[..., None]).reshape(x.shape)


def samples():
    """Every finite bf16 in blocks of mixed sizes, and normal data of many magnitudes, as fp32."""
    bits = np.arange(0x10000, dtype=np.uint16)
    every = bf16_values(bits[(bits & 0x7F80) != 0x7F80])
    every = every[np.abs(every) < 2.0**126]  # near the top, code * scale can be infinity
    every = every[: len(every) // 64 * 64]
    mixed = np.random.default_rng(0).permutation(every)
    normal = np.random.default_rng(1).standard_normal((512, 64)) * np.exp2(np.arange(-60, 452))[:, None] ** 0.25
    normal = bf16_values(bf16_bits(normal))
    return np.concatenate([every.reshape(-1, 64), mixed.reshape(-1, 64), normal]).astype(np.float32)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("is_bf16", [True, False], ids=["bf16", "fp32"])
def test_codes_scales_and_values_are_the_defined_ones(name, is_bf16) -> None:
    values = samples()
    x = bf16_bits(values) if is_bf16 else values
    rows, cols = x.shape
    block, packed = QUANTIZERS[name][0], name.startswith("fp4")
    codes = np.empty((rows, cols // 2 if packed else cols), np.uint8)
    scales = np.empty((rows, cols // block), np.uint8)
    getattr(_native, f"quantize_{name}")(x, codes, scales)
    out = np.empty_like(x)
    getattr(_native, f"qdq_{name}")(x, out)
    want_codes, want_scales, want_values = wanted(name, values)
    assert np.array_equal(scales, want_scales)
    assert np.array_equal(unpacked(codes) if packed else codes, want_codes)
    assert np.array_equal(bf16_values(out) if is_bf16 else out, want_values)


@pytest.mark.parametrize(
    ("name", "x", "values"),
    [
        ("fp8_32", [450, 4.25, 3 * 2.0**-9], [448, 4, 2.0**-7]),
        ("fp8_32", [1e-6, 1e-9], [4 * 2.0**-22, 2.0**-30]),
        ("fp4_32", [6.5, 5, 3, 0.375], [6, 4, 3, 0]),
        ("fp4_16", [7, 2.8125, 0.5625, 1.4], [6.75, 2.25, 0.5625, 1.125]),
    ],
    ids=["fp8", "fp8-floor", "fp4", "fp4-e4m3"],
)
def test_known_blocks(name, x, values) -> None:
    block = np.zeros((1, QUANTIZERS[name][0]), np.float32)
    block[0, : len(x)] = x
    getattr(_native, f"qdq_{name}")(block, block)  # in place
    assert block[0, : len(x)].tolist() == values
    assert not block[0, len(x) :].any()


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinity_and_nan_are_refused_and_nothing_is_written(name, bad) -> None:
    x = np.ones((3, 64), np.float32)
    x[2, 5] = bad
    out = np.full_like(x, 7)
    with pytest.raises(ValueError, match="x: infinity or NaN at row 2, column 5"):
        getattr(_native, f"qdq_{name}")(x, out)
    assert (out == 7).all()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_columns_are_whole_blocks_and_empty_is_fine(name) -> None:
    with pytest.raises(ValueError, match="x: 24 columns given, a multiple of"):
        getattr(_native, f"qdq_{name}")(np.ones((1, 24), np.float32), np.ones((1, 24), np.float32))
    empty = np.empty((0, 32), np.float32)
    getattr(_native, f"qdq_{name}")(empty, empty)


def test_output_of_another_type_or_overlapping_is_refused() -> None:
    x = np.ones((2, 32), np.float32)
    with pytest.raises(TypeError, match="out: dtype uint16 given, float32 needed"):
        _native.qdq_fp8_32(x, np.empty((2, 32), np.uint16))
    memory = np.ones((3, 32), np.float32)
    with pytest.raises(ValueError, match="out: shares memory with x"):
        _native.qdq_fp8_32(memory[:2], memory[1:])
