"""Arrays by DLPack: bfloat16, and memory on devices that the module cannot reach."""

from __future__ import annotations

import ctypes

import pytest
from native import native, np

_native = native()

# Byte offsets in a DLTensor, which a managed tensor begins with.
DEVICE_TYPE, DTYPE_CODE = 8, 20
BFLOAT, CUDA, CPU = 4, 2, 1


class Foreign:
    """A numpy array whose DLPack capsule claims another dtype code or device: no library is needed for either."""

    def __init__(self, array, code=None, device=CPU):
        self.array, self.code, self.device = array, code, device

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(tensor + DEVICE_TYPE).value = self.device
        if self.code is not None:
            ctypes.c_uint8.from_address(tensor + DTYPE_CODE).value = self.code
        return capsule

    def __dlpack_device__(self):
        return (self.device, 0)


def test_bfloat16_by_dlpack_is_the_same_as_its_bits() -> None:
    x = np.arange(0x3F00, 0x3F00 + 64, dtype=np.uint16).reshape(2, 32)
    bits, bfloat = np.empty_like(x), np.zeros_like(x)
    _native.qdq_fp8_32(x, bits)
    _native.qdq_fp8_32(Foreign(x, BFLOAT), Foreign(bfloat, BFLOAT))
    assert np.array_equal(bits, bfloat)

    weight, scale = np.full((2, 16), 0x21, np.uint8), np.full((2, 1), 127, np.uint8)
    _native.dequant_fp4_row(weight, scale, Foreign(bfloat, BFLOAT))
    assert bfloat[0, :2].tolist() == [0x3F00, 0x3F80]


def test_device_memory_is_refused_without_cuda() -> None:
    if _native.capabilities()["cuda"]:
        pytest.skip("not run: this module is built with CUDA")
    weight, scale = np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8)
    out = np.zeros((2, 32), np.float32)
    arrays = [Foreign(array, device=CUDA) for array in (weight, scale, out)]
    with pytest.raises(ValueError, match="weight: device type 2 given, CPU memory needed: this module was built"):
        _native.dequant_fp4_row(*arrays)
    with pytest.raises(ValueError, match="x: device type 2 given, CPU memory needed"):
        _native.qdq_fp8_32(Foreign(out, device=CUDA), out)


def test_arrays_of_one_call_are_on_one_device() -> None:
    weight, scale = np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8)
    out = np.zeros((2, 32), np.float32)
    with pytest.raises(ValueError, match="out: on another device than weight"):
        _native.dequant_fp4_row(weight, scale, Foreign(out, device=CUDA))
