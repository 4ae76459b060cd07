"""The kernels of a bring-up build by their C ABI, with the calls that the registered ops make of the native module.

Only attestation and benches load such a library, by path; the engine itself never does.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from deepinfer.engine.ops.launch import LaunchFailed, on_device_of


class DeviceOps:
    """Stands for ``deepinfer._native`` on the device: the same names, the same arguments."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)

    def kernel(self, name: str) -> Any:
        """The C function ``deepinfer_cuda_<name>``. Raises :class:`LaunchFailed` if the library has none."""
        try:
            return getattr(self.library, "deepinfer_cuda_" + name)
        except AttributeError:
            raise LaunchFailed("the library has no kernel %s" % name, fix="build it again from these sources") from None

    def error_name(self, code: int) -> str:
        """The name of a ``cudaError_t``; its number where the library holds single kernels and cannot say."""
        try:
            name = self.library.deepinfer_cuda_error_name
        except AttributeError:
            return "cudaError %d" % code
        name.restype = ctypes.c_char_p
        return str(name(code).decode("ascii", "replace"))

    def dequant_fp8_block(
        self, weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, block_rows: int, *, stream: int = 0
    ) -> None:
        """See csrc/kernels/dequant/op.h."""
        self._launch("dequant_fp8_block", weight, scale, out, [ctypes.c_int64(block_rows)], stream)

    def dequant_fp4_row(self, weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, *, stream: int = 0) -> None:
        """See csrc/kernels/dequant/op.h."""
        self._launch("dequant_fp4_row", weight, scale, out, [], stream)

    def _launch(
        self, name: str, weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, extra: list[Any], stream: int
    ) -> None:
        # While a graph is captured nothing may wait: then nobody looks at the flags.
        capturing = weight.is_cuda and torch.cuda.is_current_stream_capturing()
        status = None if capturing else weight.new_zeros(4)  # one int of four zero bytes
        rows, columns = out.shape
        words: list[Any] = [_address(weight), _address(scale), _address(out), int(out.element_size() == 4)]
        words += [ctypes.c_int64(rows), ctypes.c_int64(columns), *extra, _address(status), ctypes.c_void_p(stream)]
        with on_device_of([weight]):
            code = self.kernel(name)(*words)
        if code != 0:
            what = "%s was not launched: %s" % (name, self.error_name(code))
            raise LaunchFailed(what, fix="report it with the shape %s" % list(out.shape))
        flags = 0 if status is None else status.cpu().tolist()[0]  # waits for the kernel
        if flags:
            raise LaunchFailed("%s met NaN codes (flags %d) where no case has any" % (name, flags), fix="report it")


def _address(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
