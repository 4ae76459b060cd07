"""References compute in fp32, or in fp64 where they are fed fp64."""

from __future__ import annotations

import torch


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in fp32; fp64 stays."""
    return x if x.dtype == torch.float64 else x.float()
