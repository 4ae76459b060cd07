"""Manifold-constrained hyper-connections: n residual streams, mixed by a nearly doubly stochastic matrix.

The coefficients stay in fp32. ``comb`` is applied over its first index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def mix(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre [T, n], post [T, n], comb [T, n, n]) of ``streams`` [T, n, D].

    ``fn`` fp32 [(2 + n) n, n D] with the stream index outer, ``base`` fp32 [(2 + n) n], ``scale`` fp32 [3];
    ``iterations`` Sinkhorn steps, ending with the columns.
    """
    count, n, _ = streams.shape
    flat = wide(streams.flatten(1))
    m = (flat @ fn.to(flat.dtype).T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    post = 2.0 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((m[:, 2 * n :] * scale[2] + base[2 * n :]).view(count, n, n), dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


def collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """``sum_k pre_k * streams_k``: [T, n, D] -> [T, D]."""
    return (pre.unsqueeze(-1) * wide(streams)).sum(1).to(streams.dtype)


def expand(x: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """``post_k * x + sum_j comb[j, k] * streams_j`` -> [T, n, D]."""
    mixed = torch.einsum("tjk,tjd->tkd", comb, wide(streams))
    return (post.unsqueeze(-1) * wide(x).unsqueeze(1) + mixed).to(streams.dtype)


_FLOATS = ("bfloat16", "float32", "float64")
_STREAMS = Argument("streams", "[T, n, D]", _FLOATS)
_SOURCE = "Manifold-constrained hyper-connections; Sinkhorn and Knopp, 1967"


def _mix(inputs: Tensors, scalars: Scalars) -> Tensors:
    pre, post, comb = mix(
        inputs["streams"],
        inputs["fn"],
        inputs["base"],
        inputs["scale"],
        iterations=int(scalars["iterations"]),
        eps=scalars["eps"],
        norm_eps=scalars["norm_eps"],
    )
    return {"pre": pre, "post": post, "comb": comb}


def _mix_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Four streams as released and two; 1 and 20 Sinkhorn steps."""
    for rows, n, width, iterations in ((5, 4, 320, 20), (3, 2, 64, 1)):
        count = (2 + n) * n
        inputs = {
            "streams": normal((rows, n, width), generator, device),
            "fn": normal((count, n * width), generator, device) * (n * width) ** -0.5,
            "base": normal((count,), generator, device),
            "scale": normal((3,), generator, device),
        }
        scalars: Scalars = {"iterations": iterations, "eps": 1e-6, "norm_eps": 1e-20}
        shapes = {"pre": (rows, n), "post": (rows, n), "comb": (rows, n, n)}
        out = {name: (shape, torch.float32) for name, shape in shapes.items()}
        yield Case("%dx%dx%d, %d steps" % (rows, n, width, iterations), inputs, scalars, out)


register(
    Op(
        Contract(
            "mhc.mix",
            "coefficients of a site: sigmoids of the projected, normalized streams, and a Sinkhorn-scaled softmax",
            (
                _STREAMS,
                Argument("fn", "[(2 + n) * n, n * D], stream index outer", ("float32", "float64")),
                Argument("base", "[(2 + n) * n]", ("float32", "float64")),
                Argument("scale", "[3]", ("float32", "float64")),
                Argument("pre", "[T, n]", ("float32", "float64"), "out"),
                Argument("post", "[T, n]", ("float32", "float64"), "out"),
                Argument("comb", "[T, n, n]", ("float32", "float64"), "out"),
            ),
            {"iterations": "Sinkhorn steps", "eps": "of sigmoid and Sinkhorn", "norm_eps": "of the mean square"},
            _SOURCE,
            tolerance=1e-5,
        ),
        _mix,
        _mix_cases,
    )
)


def _collapse_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    inputs = {"streams": normal((5, 4, 96), generator, device), "pre": normal((5, 4), generator, device)}
    yield Case("5x4x96", inputs, {}, {"out": ((5, 96), torch.float32)})


register(
    Op(
        Contract(
            "mhc.collapse",
            "out = sum over k of pre_k * streams_k",
            (
                _STREAMS,
                Argument("pre", "[T, n]", ("float32", "float64")),
                Argument("out", "[T, D]", _FLOATS, "out"),
            ),
            {},
            _SOURCE,
            tolerance=1e-6,
        ),
        lambda inputs, scalars: {"out": collapse(inputs["streams"], inputs["pre"])},
        _collapse_cases,
    )
)


def _expand_cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    inputs = {
        "x": normal((5, 96), generator, device),
        "streams": normal((5, 4, 96), generator, device),
        "post": normal((5, 4), generator, device),
        "comb": normal((5, 4, 4), generator, device),
    }
    yield Case("5x4x96", inputs, {}, {"out": ((5, 4, 96), torch.float32)})


register(
    Op(
        Contract(
            "mhc.expand",
            "out_k = post_k * x + sum over j of comb[j, k] * streams_j",
            (
                Argument("x", "[T, D]", _FLOATS),
                _STREAMS,
                Argument("post", "[T, n]", ("float32", "float64")),
                Argument("comb", "[T, n, n]", ("float32", "float64")),
                Argument("out", "[T, n, D]", _FLOATS, "out"),
            ),
            {},
            _SOURCE,
            tolerance=1e-6,
        ),
        lambda inputs, scalars: {
            "out": expand(inputs["x"], inputs["streams"], inputs["post"], inputs["comb"]),
        },
        _expand_cases,
    )
)
