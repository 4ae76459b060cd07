"""A Triton kernel that only reads: the ceiling that memory-bound kernels are held against."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def reader(data, out, block: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations
    """Sum ``block`` fp32 values; the sum is stored so that the reads cannot be left out."""
    program = tl.program_id(0)
    values = tl.load(data + program.to(tl.int64) * block + tl.arange(0, block))
    tl.store(out + program % 65536, tl.sum(values))
