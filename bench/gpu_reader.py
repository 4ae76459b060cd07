"""A Triton kernel that only reads: the ceiling that memory-bound kernels are held against."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def reader(data: Any, out: Any, block: tl.constexpr) -> None:
    """Sum ``block`` fp32 values; the sum is stored so that the reads cannot be left out."""
    program = tl.program_id(0)
    values = tl.load(data + program.to(tl.int64) * block + tl.arange(0, block))
    tl.store(out + program % 65536, tl.sum(values))
