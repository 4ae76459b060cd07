"""How FP8 wgmmas and fp32 additions share a Hopper multiprocessor: cycles per 128 columns, measured by its clock.

    python bench/gpu_wgmma_fp8.py [--nvcc nvcc] [--library FILE]

A warpgroup owns 64 rows; "tensor" is what its four wgmmas of 32 columns take at the data sheet's rate (8192 operations
a cycle), "add" what adding their products to fp32 sums takes alone, "both" the two together with two sets of partial
sums in turn. Where "both" is the sum of the two, they do not overlap. Not a bench of a kernel: see gpu_linear_fp8.py.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "bench/gpu_wgmma_fp8.cu"
ROUNDS, BLOCKS = 400, 132
CASES = ((16, (1, 2, 4)), (64, (1, 2, 3)), (128, (1, 2)))  # columns, warpgroups that fit


def build(nvcc: str, library: str) -> None:
    """Compile the kernel for sm_90a."""
    words = [nvcc, "-std=c++20", "-O3", "-I", str(ROOT / "csrc"), "-gencode", "arch=compute_90a,code=sm_90a"]
    subprocess.run([*words, "-Xcompiler", "-fPIC", "-shared", str(SOURCE), "-o", library], check=True)


def measure(library: ctypes.CDLL) -> None:
    """Print the table."""
    import torch

    factors = torch.rand(1024, device="cuda")
    out = torch.empty(BLOCKS * 512, device="cuda")
    clocks = torch.zeros(BLOCKS, dtype=torch.int64, device="cuda")
    print("%-8s %-11s %8s %8s %8s" % ("outputs", "warpgroups", "tensor", "add", "both"))
    for columns, groups in CASES:
        for warpgroups in groups:
            cycles = []
            for both in (0, 1):
                for _ in range(2):
                    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (factors, out, clocks)]
                    code = library.wgmma_fp8_rounds(*pointers, columns, both, warpgroups)
                    torch.cuda.synchronize()
                    if code != 0:
                        raise SystemExit("bench/gpu_wgmma_fp8.py: launch failed with %d" % code)
                cycles.append(float(clocks.double().mean()) / ROUNDS)
            tensor = warpgroups * 64 * columns * 128 * 2 / 8192
            print("%-8d %-11d %8.0f %8.0f %8.0f" % (columns, warpgroups, tensor, *cycles))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--library", help="compiled before (default: compile now)")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.stderr.write("not run: torch is not installed\n")
        return 3
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.stderr.write("not run: needs a Hopper GPU\n")
        return 3
    with tempfile.TemporaryDirectory() as folder:
        path = options.library or str(Path(folder) / "libwgmma_fp8.so")
        if options.library is None:
            build(options.nvcc, path)
        measure(ctypes.CDLL(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
