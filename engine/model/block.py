"""One block of the backbone or of the draft model: attention and experts between hyper-connection mixes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.ops import mhc
from deepinfer.engine.ops.norm import rms_norm

Half = Callable[[torch.Tensor], torch.Tensor]


def block(
    params: Parameters,
    config: TextConfig,
    prefix: str,
    streams: torch.Tensor,
    pre: torch.Tensor,
    attention: Half,
    experts: Half,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(streams [T, n, D], mix [T, n] for the next site). ``pre`` is the mix of the site before this block.

    Each site collapses with the mix computed one site earlier: attention with the previous block's, the experts with
    this block's first.
    """
    following, post, comb = _mix(params, config, prefix + "hc_attn", streams)
    x = rms_norm(mhc.collapse(streams, pre), params[prefix + "attn_norm.weight"], config.rms_norm_eps)
    streams = mhc.expand(attention(x), streams, post, comb)
    last, post, comb = _mix(params, config, prefix + "hc_ffn", streams)
    x = rms_norm(mhc.collapse(streams, following), params[prefix + "ffn_norm.weight"], config.rms_norm_eps)
    return mhc.expand(experts(x), streams, post, comb), last


def first_mix(count: int, n: int, device: torch.device) -> torch.Tensor:
    """The mix before the first site: all of stream 0."""
    pre = torch.zeros(count, n, device=device)
    pre[:, 0] = 1.0
    return pre


def _mix(
    params: Parameters, config: TextConfig, name: str, streams: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return mhc.mix(
        streams,
        params[name + "_fn"],
        params[name + "_base"],
        params[name + "_scale"],
        iterations=config.hc_sinkhorn_iters,
        eps=config.hc_eps,
        norm_eps=config.rms_norm_eps,
    )
