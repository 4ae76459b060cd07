"""Codes and values of the number formats, as Python sees them."""

from __future__ import annotations

import pytest
from native import e2m1, e4m3, e8m0, native, np

_native = native()
ALL = np.arange(256, dtype=np.uint8)


def decoded(decode, codes):
    out = np.empty(codes.shape, np.float32)
    decode(codes, out)
    return out


def test_every_e8m0_code_is_its_power_of_two() -> None:
    out = decoded(_native.decode_e8m0, ALL)
    assert np.array_equal(out[:255].astype(np.float64), e8m0(ALL[:255]))
    assert out[0] == 2.0**-127, "a subnormal of fp32"
    assert np.isnan(out[255])


def test_every_e4m3_code_is_its_value() -> None:
    out = decoded(_native.decode_e4m3, ALL)
    assert np.array_equal(out.astype(np.float64), e4m3(ALL), equal_nan=True)
    assert np.nanmax(out) == 448


def test_every_e2m1_code_is_its_value() -> None:
    out = decoded(_native.decode_e2m1, ALL[:16])
    assert np.array_equal(out, e2m1(ALL[:16]))
    assert np.signbit(out[8]), "code 8 is -0"


@pytest.mark.parametrize(
    ("encode", "value", "codes"),
    [("encode_e4m3", e4m3, 127), ("encode_e2m1", e2m1, 8)],
    ids=["e4m3", "e2m1"],
)
def test_encoders_take_the_nearest_and_the_even_code_of_a_tie(encode, value, codes) -> None:
    magnitudes = value(np.arange(codes))
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    below = np.nextafter(ties.astype(np.float32), np.float32(0))
    above = np.nextafter(ties.astype(np.float32), np.float32(np.inf))
    lower = np.arange(codes - 1)
    for x, wanted in ((below, lower), (above, lower + 1), (ties, lower + lower % 2)):
        out = np.empty(x.shape, np.uint8)
        getattr(_native, encode)(x.astype(np.float32), out)
        assert np.array_equal(out, wanted)
        getattr(_native, encode)(-x.astype(np.float32), out)
        assert np.array_equal(out, wanted + (128 if codes == 127 else 8))


def test_encoders_saturate() -> None:
    out = np.empty(2, np.uint8)
    _native.encode_e4m3(np.array([np.inf, -1e30], np.float32), out)
    assert out.tolist() == [0x7E, 0xFE]
    _native.encode_e2m1(np.array([np.inf, -1e30], np.float32), out)
    assert out.tolist() == [7, 15]


def test_encoders_refuse_nan_and_e2m1_refuses_codes_above_15() -> None:
    out = np.full(2, 77, np.uint8)
    for encode in (_native.encode_e4m3, _native.encode_e2m1):
        with pytest.raises(ValueError, match="x: NaN at element 1"):
            encode(np.array([0, np.nan], np.float32), out)
    assert out.tolist() == [77, 77]
    with pytest.raises(ValueError, match="codes: 16 at element 1 given"):
        _native.decode_e2m1(np.array([3, 16], np.uint8), np.empty(2, np.float32))


@pytest.mark.parametrize(
    ("codes", "out", "error", "message"),
    [
        ([1, 2], np.empty(2, np.float32), TypeError, "codes: list given"),
        (np.zeros(2, np.int32), np.empty(2, np.float32), TypeError, "codes: dtype int32 given, uint8 needed"),
        (np.zeros(2, np.uint8), np.empty(2, np.float64), TypeError, "out: dtype float64 given, float32 needed"),
        (np.zeros(2, np.uint8), np.empty(3, np.float32), ValueError, r"out: float32 \(3,\) given, shape \(2,\) needed"),
        (np.zeros(4, np.uint8)[::2], np.empty(2, np.float32), ValueError, "codes: strided memory given"),
    ],
    ids=["no-array", "dtype", "out-dtype", "shape", "strided"],
)
def test_errors_name_the_argument_and_the_need(codes, out, error, message) -> None:
    with pytest.raises(error, match=message):
        _native.decode_e4m3(codes, out)


def test_output_must_be_writable() -> None:
    out = np.empty(2, np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out: ndarray given, a writable array"):
        _native.decode_e4m3(np.zeros(2, np.uint8), out)
