"""One site of the hyper-connections in one op, at the released size: four streams of width 5120.

``mhc.boundary`` is what stands between two sub-layers: expand of the previous output into the streams, the mix of the
new streams, their collapse with the mix of one site earlier, RMSNorm, and the FP8 codes that the next linear layers
read. ``mhc.site`` is the same without the expand, for the first site and for streams that something else has changed.
The kernels are in csrc/kernels/mhc, the measurements in docs/kernels/mhc.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops import mhc
from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal, uniform
from deepinfer.engine.ops.launch import launch
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

HIDDEN, STREAMS, ROWS = 5120, 4, 24
SLICES, WARPS, GROUP = 16, 10, 32  # 16 x 10 x 32 channels
PACKED = (SLICES, WARPS, 2 * STREAMS, 3, 32, 8)
PARTIAL = (SLICES, 32)  # fp32 scratch per token


def _places() -> tuple[torch.Tensor, torch.Tensor]:
    """(row of hi over rest [48], column [20480]) of every element of a packed ``fn``, as int64 [PACKED]."""
    g, e = torch.arange(8), torch.arange(8)
    first = torch.stack([g, ROWS + g, 16 + g])[:, :, None]
    second = torch.stack([8 + g, ROWS + 8 + g, ROWS + 16 + g])[:, :, None]
    row = torch.where(e // 2 % 2 == 0, first, second)  # [block, g, e]
    s, w, k, h, t = (torch.arange(size) for size in (SLICES, WARPS, STREAMS, 2, 4))
    parts = [s * WARPS * GROUP, w * GROUP, k * HIDDEN, h * 4, t * 8, e // 4 * 2 + e % 2]
    column = torch.zeros(1, dtype=torch.int64)
    for i, part in enumerate(parts):
        column = column + part.reshape([-1 if axis == i else 1 for axis in range(6)])
    shape = (SLICES, WARPS, STREAMS, 2, 3, 8, 4, 8)
    rows = row[None, None, None, None, :, :, None, :].expand(shape)
    return rows.reshape(PACKED), column[:, :, :, :, None, None].expand(shape).reshape(PACKED)


def pack_fn(fn: torch.Tensor) -> torch.Tensor:
    """``fn`` fp32 [24, 20480] as the kernels read it: bf16 [16, 10, 8, 3, 32, 8], see csrc/kernels/mhc/cuda/mhc.h.

    Done once at load. A weight becomes the sum of two bf16 numbers, which loses at most 2^-17 of it.
    """
    if fn.shape != (ROWS, STREAMS * HIDDEN) or fn.dtype != torch.float32:
        raise ValueError("fn is fp32 [24, 20480], not %s %s" % (fn.dtype, list(fn.shape)))
    high = fn.bfloat16()
    both = torch.cat([high, (fn - high.float()).bfloat16()])
    row, column = (place.to(fn.device) for place in _places())
    return both[row, column].contiguous()


def unpack_fn(packed: torch.Tensor) -> torch.Tensor:
    """The weights that :func:`pack_fn` kept, fp64 [24, 20480]."""
    row, column = (place.to(packed.device) for place in _places())
    both = torch.zeros(2 * ROWS, STREAMS * HIDDEN, dtype=torch.float64, device=packed.device)
    both[row, column] = packed.double()
    return both[:ROWS] + both[ROWS:]


def fp8_codes(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(E4M3 codes uint8 [T, D], UE8M0 scales uint8 [T, D / 32]) of bf16 ``y`` [T, D]: the FP8-32 format."""
    blocks = y.float().reshape(y.shape[0], -1, GROUP)
    largest = blocks.abs().amax(-1).clamp_min(1e-4) * torch.tensor(1.0 / 448.0, dtype=torch.float32)
    bits = largest.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    scaled = torch.ldexp(blocks, (127 - exponent)[..., None]).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).reshape(y.shape), exponent.to(torch.uint8)


def _site(inputs: Tensors, scalars: Scalars, streams: torch.Tensor) -> Tensors:
    """What follows the expand: sums in fp64, rounded where the model rounds."""
    pre, post, comb = mhc.mix(
        streams.double(),
        unpack_fn(inputs["fn"]),
        inputs["base"].double(),
        inputs["scale"].double(),
        iterations=int(scalars["iterations"]),
        eps=scalars["eps"],
        norm_eps=scalars["norm_eps"],
    )
    collapsed = mhc.collapse(streams.double(), inputs["pre"].double()).bfloat16()
    y = rms_norm(collapsed.double(), inputs["weight"].double(), scalars["norm_eps"]).bfloat16()
    codes, code_scales = fp8_codes(y)
    return {
        "next_pre": pre,
        "next_post": post,
        "next_comb": comb,
        "y": y,
        "codes": codes,
        "code_scales": code_scales,
    }


def boundary_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """See the contract of ``mhc.boundary``."""
    wide = {name: inputs[name].double() for name in ("x", "streams", "post", "comb")}
    streams = mhc.expand(wide["x"], wide["streams"], wide["post"], wide["comb"]).bfloat16()
    return {"new_streams": streams, **_site(inputs, scalars, streams)}


def site_reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    """See the contract of ``mhc.site``."""
    return _site(inputs, scalars, inputs["streams"])


def draw_inputs(rows: int, generator: torch.Generator, device: str, *, expand: bool) -> Tensors:
    """Random inputs with coefficients of the size that mixes have; tokens of very different size."""
    size = 10.0 ** uniform((rows, 1), -2.0, 2.0, generator, device)
    inputs = {
        "streams": (normal((rows, STREAMS, HIDDEN), generator, device) * size[:, :, None]).bfloat16(),
        "pre": uniform((rows, STREAMS), 0.0, 1.0, generator, device),
        "fn": pack_fn(normal((ROWS, STREAMS * HIDDEN), generator, device) * (STREAMS * HIDDEN) ** -0.5),
        "base": normal((ROWS,), generator, device),
        "scale": normal((3,), generator, device),
        "weight": normal((HIDDEN,), generator, device, torch.bfloat16),
    }
    if expand:
        inputs["x"] = (normal((rows, HIDDEN), generator, device) * size).bfloat16()
        inputs["post"] = uniform((rows, STREAMS), 0.0, 2.0, generator, device)
        comb = torch.softmax(normal((rows, STREAMS, STREAMS), generator, device) * 2.0, -1)
        inputs["comb"] = comb / comb.sum(-2, keepdim=True)
    return inputs


def outputs_of(rows: int, *, expand: bool) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every output and of the scratch memory."""
    out: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "next_pre": ((rows, STREAMS), torch.float32),
        "next_post": ((rows, STREAMS), torch.float32),
        "next_comb": ((rows, STREAMS, STREAMS), torch.float32),
        "y": ((rows, HIDDEN), torch.bfloat16),
        "codes": ((rows, HIDDEN), torch.uint8),
        "code_scales": ((rows, HIDDEN // GROUP), torch.uint8),
        "partial": ((rows, *PARTIAL), torch.float32),
    }
    if expand:
        out["new_streams"] = ((rows, STREAMS, HIDDEN), torch.bfloat16)
    return out


def _cases(generator: torch.Generator, device: str, *, expand: bool) -> Iterator[Case]:
    """One token, whole and ragged tiles of eight, a token of zeros; 1 and 20 Sinkhorn steps."""
    for rows, iterations in ((1, 20), (8, 20), (21, 1), (35, 20)):
        inputs = draw_inputs(rows, generator, device, expand=expand)
        if rows == 21:
            inputs["streams"][11] = 0.0
            if expand:
                inputs["x"][11] = 0.0
        scalars: Scalars = {"iterations": iterations, "eps": 1e-6, "norm_eps": 1e-20}
        yield Case("%d tokens, %d steps" % (rows, iterations), inputs, scalars, outputs_of(rows, expand=expand))


_FIRST = ("x", "streams", "post", "comb", "pre", "fn", "base", "scale", "weight")
_THEN = ("new_streams", "next_pre", "next_post", "next_comb", "y", "codes", "code_scales", "partial")
_ONLY_EXPAND = ("x", "post", "comb", "new_streams")


def _native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars, *, expand: bool) -> None:
    tensors = {**inputs, **outputs}
    names = [name for name in (*_FIRST, *_THEN) if expand or name not in _ONLY_EXPAND]
    numbers = (int(scalars["iterations"]), float(scalars["eps"]), float(scalars["norm_eps"]))
    name = "mhc_boundary" if expand else "mhc_site"
    launch(module, name, *(tensors[key] for key in names), inputs["streams"].shape[0], *numbers)


_BF16, _FP32, _BYTE = ("bfloat16",), ("float32",), ("uint8",)
_ARGUMENTS = (
    Argument("x", "[T, 5120], output of the previous sub-layer", _BF16),
    Argument("streams", "[T, 4, 5120]", _BF16),
    Argument("post", "[T, 4], mix of the previous site", _FP32),
    Argument("comb", "[T, 4, 4], mix of the previous site, applied over its first index", _FP32),
    Argument("pre", "[T, 4], mix of one site before this one", _FP32),
    Argument("fn", "[16, 10, 8, 3, 32, 8], see pack_fn", _BF16),
    Argument("base", "[24]", _FP32),
    Argument("scale", "[3]", _FP32),
    Argument("weight", "[5120], of the norm", _BF16),
    Argument("new_streams", "[T, 4, 5120]", _BF16, "out", tolerance=1e-3),
    Argument("next_pre", "[T, 4]", _FP32, "out"),
    Argument("next_post", "[T, 4]", _FP32, "out"),
    Argument("next_comb", "[T, 4, 4]", _FP32, "out"),
    Argument("y", "[T, 5120], collapsed and normalized", _BF16, "out", tolerance=2e-3),
    Argument("codes", "[T, 5120], E4M3 codes of y", _BYTE, "out", tolerance=1e-2),
    Argument("code_scales", "[T, 160], UE8M0, one per 32 channels", _BYTE, "out", tolerance=1e-3),
    Argument("partial", "[T, 16, 32], sums of slices", _FP32, "work"),
)
_SCALARS = {"iterations": "Sinkhorn steps", "eps": "of sigmoid and Sinkhorn", "norm_eps": "of both mean squares"}
_ORDER = (
    "none occur; a token's result does not depend on the others: sums over steps of 16, then over warps, then over"
    " slices of 320 channels, each in rising order; codes and scales are exactly those of the y that is returned"
)
_SOURCE = "Manifold-constrained hyper-connections; Sinkhorn and Knopp, 1967; OCP 8-bit floating point (E4M3FN)"


def _register(name: str, summary: str, reference: Any, *, expand: bool) -> None:
    arguments = tuple(argument for argument in _ARGUMENTS if expand or argument.name not in _ONLY_EXPAND)

    def cases(generator: torch.Generator, device: str) -> Iterator[Case]:
        return _cases(generator, device, expand=expand)

    def native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        _native(module, inputs, outputs, scalars, expand=expand)

    contract = Contract(name, summary, arguments, _SCALARS, _SOURCE, tolerance=1e-4, ties=_ORDER, batch="T")
    register(Op(contract, reference, cases, {"cuda": native}))


_register(
    "mhc.boundary",
    "new_streams = expand(x, streams); next mix of new_streams; y = rms_norm(collapse(new_streams, pre)) and its FP8",
    boundary_reference,
    expand=True,
)
_register(
    "mhc.site",
    "next mix of streams; y = rms_norm(collapse(streams, pre)) and its FP8 codes",
    site_reference,
    expand=False,
)
