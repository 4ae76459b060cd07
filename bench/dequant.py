"""Dequantization on one CPU core: ours, torch's way, and the copy bandwidth that bounds both, from one run.

    python bench/dequant.py [--mib 256] [--rounds 7] [--json]

Bandwidth counts bytes read plus bytes written; the bound is memcpy of as many bytes. Goal: at least 0.60 of it.
Exit code 0: goals met, 1: a goal missed, 3: something was not run.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GOAL = 0.60
COLUMNS = 4096


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Median over ``rounds``, after one warm-up."""
    work()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def copy_bandwidth(total_bytes: int, rounds: int) -> float:
    """Bytes read plus written per second of a copy that moves ``total_bytes`` in all: the better of two ways."""
    import torch

    source = torch.randint(0, 255, (total_bytes // 2,), dtype=torch.uint8)
    target = torch.empty_like(source)
    ways = (
        lambda: target.copy_(source),
        lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), total_bytes // 2),
    )
    return total_bytes / min(median_seconds(way, rounds) for way in ways)


def torch_fp8(weight: Any, scale: Any, out: Any) -> None:
    """The idiomatic torch way: convert, spread the scales by broadcasting, multiply."""
    import torch

    rows, columns = weight.shape
    power = torch.exp2(scale.float() - 127).to(torch.bfloat16)
    value = weight.view(torch.float8_e4m3fn).to(torch.bfloat16).view(rows // 32, 32, columns // 32, 32)
    torch.mul(value, power.view(rows // 32, 1, columns // 32, 1), out=out.view(rows // 32, 32, columns // 32, 32))


def torch_fp4(weight: Any, scale: Any, out: Any) -> None:
    """Table lookup of both nibbles, then the scales by broadcasting."""
    import torch

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16)
    rows, half = weight.shape
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).view(rows, half * 2 // 32, 32)
    power = torch.exp2(scale.float() - 127).to(torch.bfloat16)
    torch.mul(table[codes.int()], power.unsqueeze(-1), out=out.view(rows, half * 2 // 32, 32))


def measure(mib: int, rounds: int) -> list[dict[str, Any]]:
    """One row per op: GB/s of ours, torch and copy. Ours is compared with torch bit for bit first."""
    import torch

    from deepinfer.engine.native import load

    module = load()
    torch.set_num_threads(1)
    rows = (mib << 20) // (2 * COLUMNS) // 32 * 32
    generator = torch.Generator().manual_seed(11)
    out, other = (torch.empty(rows, COLUMNS, dtype=torch.bfloat16) for _ in range(2))
    found = []
    for name in ("fp8_block", "fp4_row"):
        wide = COLUMNS if name == "fp8_block" else COLUMNS // 2
        weight = torch.randint(0, 0x7F, (rows, wide), dtype=torch.uint8, generator=generator)
        blocks = rows // 32 if name == "fp8_block" else rows
        scale = torch.randint(110, 140, (blocks, COLUMNS // 32), dtype=torch.uint8, generator=generator)
        if name == "fp8_block":
            ours = functools.partial(module.dequant_fp8_block, weight, scale, out, 32)
            theirs = functools.partial(torch_fp8, weight, scale, other)
        else:
            ours = functools.partial(module.dequant_fp4_row, weight, scale, out)
            theirs = functools.partial(torch_fp4, weight, scale, other)
        ours()
        theirs()
        if not torch.equal(out.view(torch.int16), other.view(torch.int16)):
            raise SystemExit("bench/dequant.py: %s and torch disagree; nothing is timed" % name)
        moved = weight.numel() + scale.numel() + out.numel() * 2
        speed = {
            "ours": moved / median_seconds(ours, rounds),
            "torch": moved / median_seconds(theirs, max(rounds // 2, 1)),
        }
        speed["copy"] = copy_bandwidth(moved, rounds)
        found.append({"op": name, "bytes": moved, **speed, "ratio": speed["ours"] / speed["copy"]})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the output; far above the last-level cache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.mib < 8 or options.rounds < 1:
        parser.error("--mib must be at least 8 and --rounds at least 1")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, always the same
    try:
        rows = measure(options.mib, options.rounds)
    except ImportError as error:
        sys.stderr.write("not run: %s is not installed\n" % error.name)
        return 3
    from deepinfer.engine.native import load

    simd = load().capabilities()["simd"]
    if options.json:
        print(json.dumps({"schema": 1, "simd": simd, "goal": GOAL, "rows": rows}, indent=1))
    else:
        print("one core, %s; GB/s of bytes read plus written, median of %d" % (simd, options.rounds))
        print("%-10s %8s %8s %8s %10s %10s  %s" % ("op", "ours", "torch", "copy", "ours/copy", "ours/torch", "goal"))
        for row in rows:
            verdict = "pass" if row["ratio"] >= GOAL else "MISS"
            shown = [row[key] / 1e9 for key in ("ours", "torch", "copy")]
            ratios = (row["ratio"], row["ours"] / row["torch"])
            print("%-10s %8.2f %8.2f %8.2f %10.2f %10.2f  >= %.2f %s" % (row["op"], *shown, *ratios, GOAL, verdict))
    return int(any(row["ratio"] < GOAL for row in rows))


if __name__ == "__main__":
    sys.exit(main())
