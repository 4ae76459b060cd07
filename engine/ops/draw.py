"""Fresh random inputs for the cases of ops: drawn on the CPU, so that a seed gives the same numbers on every device."""

from __future__ import annotations

import torch


def normal(
    shape: tuple[int, ...], generator: torch.Generator, device: str, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator, device: str) -> torch.Tensor:
    """fp32 in [low, high)."""
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(device)


def integers(
    shape: tuple[int, ...],
    low: int,
    high: int,
    generator: torch.Generator,
    device: str,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Whole numbers from ``low`` to ``high - 1``."""
    return torch.randint(low, high, shape, generator=generator).to(dtype).to(device)
