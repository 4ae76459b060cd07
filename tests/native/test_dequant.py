"""Packed weights to bf16 and fp32, by every instruction set that this machine has."""

from __future__ import annotations

import pytest
from native import bf16_bits, e2m1, e4m3, e8m0, native, np, unpacked

_native = native()


@pytest.fixture(params=["avx512", "avx2", "portable"])
def simd(request):
    if request.param not in _native.capabilities()["simd_available"]:
        pytest.skip(f"not run: no {request.param} on this machine")
    _native.set_simd(request.param)
    yield request.param
    _native.set_simd("auto")


def without_nan(codes):
    return np.where((codes & 127) == 127, 0, codes).astype(np.uint8)


def check(out, values):
    if out.dtype == np.uint16:
        assert np.array_equal(out, bf16_bits(values))
    else:
        with np.errstate(over="ignore"):
            assert np.array_equal(out.view(np.uint32), values.astype(np.float32).view(np.uint32))


TYPES = pytest.mark.parametrize("dtype", [np.uint16, np.float32], ids=["bf16", "fp32"])


@TYPES
def test_every_fp8_code_with_every_scale(simd, dtype) -> None:
    weight = np.tile(without_nan(np.arange(256)), (255, 1))
    scale = np.repeat(np.arange(255, dtype=np.uint8)[:, None], 8, axis=1)
    out = np.empty((255, 256), dtype)
    _native.dequant_fp8_block(weight, scale, out, block_rows=1)
    check(out, e4m3(weight) * e8m0(np.arange(255))[:, None])


@TYPES
def test_every_fp4_code_with_every_scale(simd, dtype) -> None:
    weight = np.tile(np.arange(256, dtype=np.uint8), (255, 1))
    scale = np.repeat(np.arange(255, dtype=np.uint8)[:, None], 16, axis=1)
    out = np.empty((255, 512), dtype)
    _native.dequant_fp4_row(weight, scale, out)
    check(out, e2m1(unpacked(weight)) * e8m0(np.arange(255))[:, None])


@TYPES
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("rows", "cols", "block_rows"), [(64, 96, 32), (65, 64, 32), (1, 32, 32), (7, 32, 3), (2048, 512, 32)]
)
def test_scales_cover_their_blocks(simd, dtype, threads, rows, cols, block_rows) -> None:
    rng = np.random.default_rng(rows)
    weight = without_nan(rng.integers(0, 256, (rows, cols)))
    scale = rng.integers(90, 160, (-(-rows // block_rows), cols // 32), np.uint8)
    out = np.empty((rows, cols), dtype)
    _native.dequant_fp8_block(weight, scale, out, block_rows, threads=threads)
    full = np.repeat(np.repeat(scale, block_rows, 0)[:rows], 32, 1)
    check(out, e4m3(weight) * e8m0(full))

    packed = rng.integers(0, 256, (rows, cols // 2), np.uint8)
    scale = rng.integers(90, 160, (rows, cols // 32), np.uint8)
    _native.dequant_fp4_row(packed, scale, out, threads=threads)
    check(out, e2m1(unpacked(packed)) * e8m0(np.repeat(scale, 32, 1)))


def test_signed_and_read_only_inputs_are_taken_as_bytes() -> None:
    weight = np.full((1, 16), 0xF1, np.uint8)
    scale = np.full((1, 1), 127, np.uint8)
    weight.flags.writeable = scale.flags.writeable = False
    out = np.empty((1, 32), np.float32)
    _native.dequant_fp4_row(weight.view(np.int8), scale.view(np.int8), out)
    assert out[0, :2].tolist() == [0.5, -6]


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_empty_arrays_are_fine(shape) -> None:
    rows, cols = shape
    out = np.empty(shape, np.float32)
    _native.dequant_fp8_block(np.empty(shape, np.uint8), np.empty((-(-rows // 32), cols // 32), np.uint8), out, 32)
    _native.dequant_fp4_row(np.empty((rows, cols // 2), np.uint8), np.empty((rows, cols // 32), np.uint8), out)


def test_nan_is_refused_with_its_place_and_nothing_is_written(simd) -> None:
    weight, scale = np.zeros((70, 64), np.uint8), np.full((3, 2), 127, np.uint8)
    out = np.full((70, 64), 7, np.float32)
    weight[40, 33] = 0xFF
    with pytest.raises(ValueError, match="weight: NaN code at row 40, column 33"):
        _native.dequant_fp8_block(weight, scale, out, 32)
    scale[2, 1] = 255
    with pytest.raises(ValueError, match=r"scale: 255 \(NaN\) at row 2, column 1"):
        _native.dequant_fp8_block(weight, scale, out, 32)
    scale = np.full((70, 2), 255, np.uint8)
    with pytest.raises(ValueError, match=r"scale: 255 \(NaN\) at row 0, column 0"):
        _native.dequant_fp4_row(weight[:, :32].copy(), scale, out)
    assert (out == 7).all()


def zeros(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("weight", "scale", "out", "rest", "error", "message"),
    [
        (zeros(2, 33), zeros(1, 1), zeros(2, 33, dtype=np.float32), (32,), ValueError, "weight: 33 columns given"),
        (zeros(2, 32), zeros(2, 1), zeros(2, 32, dtype=np.float32), (32,), ValueError, r"scale: .* \(1, 1\) needed"),
        (zeros(2, 32), zeros(1, 1), zeros(2, 31, dtype=np.float32), (32,), ValueError, r"out: .* \(2, 32\) needed"),
        (zeros(32), zeros(1, 1), zeros(2, 32, dtype=np.float32), (32,), ValueError, r"weight: shape \(32,\) given"),
        (zeros(2, 32), zeros(1, 1), zeros(2, 32, dtype=np.float64), (32,), TypeError, "out: dtype float64 given"),
        (zeros(2, 32), zeros(1, 1), zeros(2, 32, dtype=np.float32), (0,), ValueError, "block_rows: 0 given"),
        (zeros(2, 32), zeros(1, 1), zeros(2, 32, dtype=np.float32), (32, 0), ValueError, "threads: 0 given"),
        (zeros(2, 32), zeros(1, 1), zeros(2, 32, dtype=np.float32), (32, 1, 5), ValueError, "stream: given for arrays"),
    ],
    ids=["columns", "scale-shape", "out-shape", "dims", "dtype", "block-rows", "threads", "stream"],
)
def test_errors_name_the_argument_and_the_need(weight, scale, out, rest, error, message) -> None:
    with pytest.raises(error, match=message):
        _native.dequant_fp8_block(weight, scale, out, *rest)


def test_output_over_the_input_is_refused() -> None:
    memory = np.zeros((1, 128), np.uint8)
    with pytest.raises(ValueError, match="out: shares memory with weight"):
        _native.dequant_fp8_block(memory[:, :32], np.zeros((1, 1), np.uint8), memory.view(np.float32), 1)


def test_capabilities_name_what_runs() -> None:
    seen = _native.capabilities()
    assert set(seen) == {"simd", "simd_available", "cuda", "compiled_for"}
    assert seen["simd"] == seen["simd_available"][0]
    assert seen["simd_available"][-1] == "portable"
    with pytest.raises(ValueError, match="name: 'mmx' given, one of auto, "):
        _native.set_simd("mmx")
