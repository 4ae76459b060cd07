"""Attention of one query over its window and its selected entries, with a sink that only enlarges the denominator."""

from __future__ import annotations

import torch

from deepinfer.engine.ops.precision import wide


def attend(
    query: torch.Tensor,
    window: torch.Tensor,
    window_mask: torch.Tensor,
    entries: torch.Tensor,
    entry_mask: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """[T, H, C] out of ``query`` [T, H, C], keys that are also values, and masks.

    ``window`` [A, C], ``window_mask`` bool [T, A]; ``entries`` [B, C], ``entry_mask`` bool [T, B]; ``sink`` fp32 [H].
    A token that is in both counts twice. Scores are scaled by C^-0.5. A row that sees nothing is 0.
    """
    keys = wide(torch.cat([window, entries]))
    mask = torch.cat([window_mask, entry_mask], dim=1).unsqueeze(1)
    scores = torch.einsum("thc,nc->thn", wide(query), keys) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    top = torch.maximum(scores.amax(-1), sink) if keys.shape[0] else sink.expand(query.shape[:2])
    weight = torch.exp(scores - top.unsqueeze(-1))
    total = weight.sum(-1) + torch.exp(sink - top)
    return (torch.einsum("thn,nc->thc", weight, keys) / total.unsqueeze(-1)).to(query.dtype)


def window_mask(positions: torch.Tensor, key_positions: torch.Tensor, width: int) -> torch.Tensor:
    """bool [T, A]: keys at ``max(0, p - width + 1) .. p``."""
    distance = positions[:, None] - key_positions[None, :]
    return (distance >= 0) & (distance < width)
