"""Parameters by release name, and the linear layers that read them."""

from __future__ import annotations

import torch

from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.quantizers import qdq_fp8_32


class Parameters:
    """``tensors``: release name -> tensor, quantized weights already dequantized; Engram tables stay packed bytes.

    ``act_quant``: ``none``, or ``fp8`` to round the inputs of quantized linears as a W8A8 engine does.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], dtype: torch.dtype, act_quant: str = "none") -> None:
        if act_quant not in ("none", "fp8"):
            raise ValueError("act_quant is %r, not none or fp8" % act_quant)
        self.tensors = tensors
        self.dtype = dtype
        self.act_quant = act_quant

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def quantized_input(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` as a quantized linear reads it."""
        return qdq_fp8_32(x) if self.act_quant == "fp8" else x

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """``x @ W^T`` in the parameters' dtype: [T, in] -> [T, out]."""
        return x @ self.tensors[name + ".weight"].to(x.dtype).T

    def wide(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The same with fp32 output."""
        return wide(x) @ self.tensors[name + ".weight"].to(wide(x).dtype).T
