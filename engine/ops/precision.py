"""References compute in fp32, or in fp64 where they are fed fp64; where bits count, by IEEE operations alone."""

from __future__ import annotations

import torch


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in fp32; fp64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def root(x: torch.Tensor) -> torch.Tensor:
    """The IEEE square root of fp32 ``x``, in fp32.

    On a CPU torch leaves fp32 roots to MKL, which does not round all of them to the nearest and differs between makes
    of CPU. A root of 24 bits is never so near to the middle of two fp32 that the second rounding could be felt.
    """
    return torch.sqrt(x.double()).float()
