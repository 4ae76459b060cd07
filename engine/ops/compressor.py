"""Compression of two neighboring tokens into one latent, by a softmax per channel over the two."""

from __future__ import annotations

import torch


def pair_up(gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """fp32 [G, C] out of fp32 gates and values [2 G, C]: rows 2j and 2j + 1 make latent j."""
    pairs = gates.shape[0] // 2
    gate, value = gates.reshape(pairs, 2, gates.shape[1]), values.reshape(pairs, 2, values.shape[1])
    return (torch.softmax(gate, dim=1) * value).sum(1)
