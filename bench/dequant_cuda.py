"""The CUDA dequantizer on the device that is here, compiled by hand for it, against the device's own copy bandwidth.

    python bench/dequant_cuda.py --nvcc nvcc --arch 90a [--mib 1024] [--rounds 30]

A measurement of a kernel, not of support: the library is built into a temporary folder and thrown away. Values are
first compared with the torch reference bit for bit, on fresh random inputs and poisoned outputs. Times are medians of
CUDA events; bandwidth counts bytes read plus written; the bound is a device-to-device copy of as many bytes, measured
in turn with it. Exit code 0: goal met, 1: missed, 3: not run.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SOURCE = ROOT / "csrc/kernels/dequant/cuda/dequant.cu"
GOAL = 0.80
COLUMNS = 4096


def build(nvcc: str, arch: str, folder: str) -> ctypes.CDLL:
    """The kernels as a shared library for one architecture."""
    library = str(Path(folder) / "libdequant.so")
    gencode = "arch=compute_%s,code=sm_%s" % (arch, arch)
    words = [nvcc, "-std=c++20", "-O3", "-gencode", gencode, "-I", str(ROOT / "csrc"), "-Xcompiler", "-fPIC", "-shared"]
    subprocess.run([*words, str(SOURCE), "-o", library], check=True)
    return ctypes.CDLL(library)


def call(library: ctypes.CDLL, name: str, case: dict[str, Any], status: Any, stream: int) -> None:
    """Launch one op; raises if the launcher says no."""
    import torch

    def pointer(tensor: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    rows, columns = case["out"].shape
    words: list[Any] = [pointer(case["weight"]), pointer(case["scale"]), pointer(case["out"])]
    words += [int(case["out"].dtype == torch.float32), ctypes.c_int64(rows), ctypes.c_int64(columns)]
    if name == "fp8_block":
        words.append(ctypes.c_int64(case["block_rows"]))
    words += [pointer(status), ctypes.c_void_p(stream)]
    code = getattr(library, "deepinfer_cuda_dequant_%s" % name)(*words)
    if code != 0:
        raise SystemExit("bench/dequant_cuda.py: %s: launch failed with %d" % (name, code))


def median_us(work: Callable[[], object], rounds: int) -> float:
    """Median time of ``work`` on the device in microseconds, by events, after warming up."""
    import torch

    for _ in range(3):
        work()
    event: Any = torch.cuda.Event
    times: list[float] = []
    for _ in range(rounds):
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000.0)
    return statistics.median(times)


def conform(library: ctypes.CDLL, seed: int) -> int:
    """Every case of the ops' own suite on the device; returns how many. Raises on the first difference."""
    import torch

    from deepinfer.engine.ops import conformance
    from deepinfer.engine.ops.registry import load_all

    count = 0
    stream = torch.cuda.current_stream().cuda_stream
    for name in ("fp8_block", "fp4_row"):
        op = load_all()["dequant." + name]
        for case in op.cases(torch.Generator().manual_seed(seed), "cuda"):
            shape, dtype = case.out["out"]
            out = torch.full(shape, float("nan"), dtype=dtype, device="cuda")
            status = torch.zeros(1, dtype=torch.int32, device="cuda")
            call(library, name, {**case.inputs, **case.scalars, "out": out}, status, stream)
            outcome = conformance.compare(name, op, case, {"out": out})
            if not outcome.passed or int(status) != 0:
                raise SystemExit("bench/dequant_cuda.py: seed %d: %s: %s" % (seed, outcome.case, outcome.detail))
            count += 1
    return count


def measure(library: ctypes.CDLL, mib: int, rounds: int) -> list[tuple[str, float, float, int]]:
    """(op and output type, microseconds, microseconds of the copy, bytes) per case."""
    import torch

    found = []
    stream = torch.cuda.current_stream().cuda_stream
    status = torch.zeros(1, dtype=torch.int32, device="cuda")
    for name in ("fp8_block", "fp4_row"):
        for dtype in (torch.bfloat16, torch.float32):
            rows = (mib << 20) // (dtype.itemsize * COLUMNS) // 32 * 32
            wide, blocks = (COLUMNS, rows // 32) if name == "fp8_block" else (COLUMNS // 2, rows)
            case: dict[str, Any] = {
                "weight": torch.randint(0, 0x7F, (rows, wide), dtype=torch.uint8, device="cuda"),
                "scale": torch.randint(110, 140, (blocks, COLUMNS // 32), dtype=torch.uint8, device="cuda"),
                "out": torch.empty(rows, COLUMNS, dtype=dtype, device="cuda"),
                "block_rows": 32,
            }
            moved = sum(case[key].numel() * case[key].element_size() for key in ("weight", "scale", "out"))
            source = torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            launch = functools.partial(call, library, name, case, status, stream)
            ours = [median_us(launch, rounds) for _ in range(2)]
            copy = [median_us(functools.partial(target.copy_, source), rounds) for _ in range(2)]
            found.append(("%s -> %s" % (name, str(dtype).rpartition(".")[2]), min(ours), min(copy), moved))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", required=True, help="as nvcc takes it, such as 90a")
    parser.add_argument("--mib", type=int, default=1024, help="size of the output")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.stderr.write("not run: torch is not installed\n")
        return 3
    if not torch.cuda.is_available():
        sys.stderr.write("not run: torch sees no CUDA device\n")
        return 3
    with tempfile.TemporaryDirectory() as folder:
        library = build(options.nvcc, options.arch, folder)
        seed = time.time_ns() % 2**31
        print("%s, sm_%s: %d cases bit for bit" % (torch.cuda.get_device_name(), options.arch, conform(library, seed)))
        rows = measure(library, options.mib, options.rounds)
    print("%-22s %10s %10s %8s %8s  %s" % ("op", "ours us", "copy us", "GB/s", "ratio", "goal"))
    for name, ours, copy, moved in rows:
        ratio = copy / ours
        words = (name, ours, copy, moved / ours / 1e3, ratio, GOAL, "pass" if ratio >= GOAL else "MISS")
        print("%-22s %10.1f %10.1f %8.0f %8.2f  >= %.2f %s" % words)
    return int(any(copy / ours < GOAL for _, ours, copy, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
