"""What the row kernels are held against: the same packed rows by chains of torch ops. Not a bench itself.

Each chain is written as one would without kernels: few ops, no order of sums, angles from torch. Values are not
compared bit for bit here; that is what the conformance cases do with the references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable

    Tensors = dict[str, torch.Tensor]

EPS = 1e-20


def _split(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.reshape(*x.shape[:-1], -1, width)


def _scale_byte(largest: torch.Tensor) -> torch.Tensor:
    return (largest.view(torch.int32) + 0x7FFFFF) >> 23


def _fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = _split(x.float(), 32)
    byte = _scale_byte(blocks.abs().amax(-1).clamp_min(1e-4) * (1.0 / 448.0))
    inverse = ((254 - byte) << 23).view(torch.float32)
    codes = (blocks * inverse[..., None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).flatten(-2), byte.to(torch.uint8)


def _e2m1(scaled: torch.Tensor) -> torch.Tensor:
    size = scaled.abs()
    code = torch.signbit(scaled).to(torch.uint8) << 3
    for number, edge in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        code += (size > edge if number % 2 == 0 else size >= edge).to(torch.uint8)
    code = code.flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4)


def _fp4_32(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = _split(x.float(), 32)
    byte = _scale_byte(blocks.abs().amax(-1).clamp_min(6.0 * 2.0**-126) * (1.0 / 6.0))
    return _e2m1(blocks * ((254 - byte) << 23).view(torch.float32)[..., None]), byte.to(torch.uint8)


def _fp4_16(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = _split(x.float(), 16)
    scale = (blocks.abs().amax(-1).clamp_min(6.0 * 2.0**-9) / 6.0).clamp_max(448.0).to(torch.float8_e4m3fn)
    return _e2m1((blocks / scale.float()[..., None]).clamp(-6.0, 6.0)), scale.view(torch.uint8)


def _turned(x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """The rotated trailing channels alone."""
    angle = positions.float()[:, None] * freqs
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (freqs.numel(),)
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    even, odd = _split(x[..., -2 * freqs.numel() :].float(), 2).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def _rotate(x: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    turned = _turned(x, inputs["positions"], inputs["freqs"])
    return torch.cat([x[..., : -turned.shape[-1]], turned], dim=-1)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def fp8(inputs: Tensors, outputs: Tensors) -> None:
    codes, scales = _fp8(inputs["x"])
    outputs["codes"].copy_(codes)
    outputs["scales"].copy_(scales)


def normed_fp8(inputs: Tensors, outputs: Tensors) -> None:
    normed = _normed(inputs["x"], inputs["weight"])
    outputs["normed"].copy_(normed)
    fp8({"x": normed}, outputs)


def queries(inputs: Tensors, outputs: Tensors) -> None:
    x = inputs["x"]
    turned = _turned(x, inputs["positions"], inputs["freqs"])
    x[..., -turned.shape[-1] :] = turned


def index_queries(inputs: Tensors, outputs: Tensors) -> None:
    codes, scales = _fp4_32(_rotate(inputs["x"], inputs))
    outputs["codes"].copy_(codes)
    outputs["scales"].copy_(scales)


def window(inputs: Tensors, outputs: Tensors) -> None:
    records = torch.cat(_fp8(_rotate(_normed(inputs["x"], inputs["weight"]), inputs)), dim=1)
    outputs["cache"].index_copy_(0, inputs["slots"], records)


def entry(inputs: Tensors, outputs: Tensors) -> None:
    normed = _normed(inputs["x"], inputs["weight"])
    outputs["normed"].copy_(normed)
    outputs["cache"].index_copy_(0, inputs["slots"], torch.cat(_fp4_16(_rotate(normed, inputs)), dim=1))


def pair(inputs: Tensors, outputs: Tensors) -> None:
    outputs["latent"].copy_(_latent(inputs))


def _latent(inputs: Tensors) -> torch.Tensor:
    gates, values = (inputs[name].reshape(-1, 2, inputs[name].shape[1]) for name in ("gates", "values"))
    return (torch.softmax(gates, dim=1) * values).sum(1).bfloat16()


def pair_entry(inputs: Tensors, outputs: Tensors) -> None:
    entry({**inputs, "x": _latent(inputs)}, outputs)


CHAINS: dict[str, Callable[[Any, Any], None]] = {
    "quantize_rows.fp8": fp8,
    "quantize_rows.normed_fp8": normed_fp8,
    "rows.queries": queries,
    "rows.index_queries": index_queries,
    "rows.window": window,
    "rows.entry": entry,
    "compressor.pair": pair,
    "compressor.pair_entry": pair_entry,
}
