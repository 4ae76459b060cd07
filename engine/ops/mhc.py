"""Manifold-constrained hyper-connections: n residual streams, mixed by a nearly doubly stochastic matrix.

The coefficients stay in fp32. ``comb`` is applied over its first index.
"""

from __future__ import annotations

import torch

from deepinfer.engine.ops.precision import wide


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
