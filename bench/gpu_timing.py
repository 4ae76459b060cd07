"""How the GPU benches measure: one clock, one set of ceilings, one table. Not a bench itself.

A bench is a file ``gpu_<op>.py`` that calls ``main(__doc__, measure, ops)``:

* ``measure(bench) -> Iterable[Row]`` yields rows; ``bench.module`` launches our kernels, ``bench.time_us(work, sets)``
  times ``work(i)`` on input set ``i``, ``bench.read_ceiling()`` is what this device reads per second in this process.
* ``ops`` are the names of the registered ops that ``--check`` runs through their conformance cases first.

Method: three warm-up calls, then calls over rotating input sets captured into a CUDA graph of about ten milliseconds,
replayed for at least 60 ms before the first of 15 timed replays; the figure is the median per call. Rotating sets
should sum to several times the L2 cache. Ratios hold within one process only: clocks and power differ by the day.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GRAPH_US, WARM_US, REPLAYS = 10_000.0, 60_000.0, 15


class Timed(float):
    """Microseconds, the median of the replays; ``spread`` is their largest over their smallest, less one."""

    spread: float | None = None


@dataclass
class Row:
    """One line: ``us`` ours, ``bound_us`` the least that this process's ceilings allow, ``baseline_us`` the best peer.

    ``form`` names the activation or row format that the figure is for. ``goal`` in words; ``met`` None: not judged.
    ``floor`` is what the gate ``bench`` asks for: ``bound_us / us`` at least; None: the row is not part of the gate.
    """

    case: str
    us: float
    bound_us: float | None = None
    baseline: str = ""
    baseline_us: float | None = None
    goal: str = ""
    met: bool | None = None
    form: str = ""
    floor: float | None = None

    def document(self) -> dict[str, Any]:
        """The row as JSON, with the spread of its replays where it is known."""
        return {**asdict(self), "us": float(self.us), "spread": getattr(self.us, "spread", None)}


class Bench:
    """A device, our kernels on it, and its ceilings."""

    def __init__(self, library: str) -> None:
        import torch

        from deepinfer.engine.attest.device_ops import DeviceOps

        self.torch = torch
        self.module = DeviceOps(library)
        self._read: float | None = None
        self._rates: dict[str, float] = {}

    def time_us(self, work: Callable[[int], object], sets: int = 1, *, graph: bool = True) -> Timed:
        """Median time of one call in microseconds. ``graph`` False: for work that cannot be captured."""
        torch = self.torch
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for i in range(3):
                work(i % sets)
            side.synchronize()
            once = self._elapsed(lambda: [work(i % sets) for i in range(sets)], side) / sets
            calls = max(sets, min(2000, int(GRAPH_US / max(once, 1.0)) // sets * sets))
            if graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured, stream=side):
                    for i in range(calls):
                        work(i % sets)
                replay: Callable[[], object] = captured.replay
            else:

                def replay() -> object:
                    return [work(i % sets) for i in range(calls)]

            spent = 0.0
            while spent < WARM_US:
                spent += max(self._elapsed(replay, side), 1.0)
            times = [self._elapsed(replay, side) for _ in range(REPLAYS)]
            found = Timed(statistics.median(times) / calls)
            found.spread = max(times) / min(times) - 1.0
            return found

    def _elapsed(self, work: Callable[[], object], stream: Any) -> float:
        event: Any = self.torch.cuda.Event
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000.0

    def read_ceiling(self) -> float:
        """Bytes per second of a kernel that only reads 4 GiB."""
        if self._read is None:
            torch = self.torch
            count = 1 << 30
            data = torch.empty(count, dtype=torch.float32, device="cuda").normal_()
            out = torch.empty(1 << 16, dtype=torch.float32, device="cuda")
            kernel, block = _reader(), 16384
            self._read = count * 4 / self.time_us(lambda _: kernel[(count // block,)](data, out, block)) * 1e6
            del data
            torch.cuda.empty_cache()
        return self._read

    def matrix_rate(self, kind: str) -> float:
        """FLOP per second of an 8192^3 product of random data, sustained: ``bf16`` or ``fp8`` (E4M3, row scales)."""
        if kind not in self._rates:
            torch = self.torch
            a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            if kind == "bf16":
                spent = self.time_us(lambda _: torch.mm(a, b))
            else:
                x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
                one = torch.ones(8192, 1, device="cuda")
                spent = self.time_us(
                    lambda _: torch._scaled_mm(
                        x, y, one, one.t().contiguous(), out_dtype=torch.bfloat16, use_fast_accum=True
                    )
                )
            self._rates[kind] = 2.0 * 8192**3 / spent * 1e6
        return self._rates[kind]

    def bound_us(self, *, read: float = 0.0, flop: float = 0.0, kind: str = "bf16") -> float:
        """The larger of bytes over the read ceiling and FLOP over the sustained matrix rate."""
        return max(read / self.read_ceiling(), flop / self.matrix_rate(kind) if flop else 0.0) * 1e6


def _reader() -> Any:
    """A Triton kernel that only reads; imported late, so that this file needs no Triton."""
    from gpu_reader import reader

    return reader


def check(bench: Bench, names: Iterable[str], seed: int) -> int:
    """Conformance of the named ops on the device; prints failures and returns how many there are."""
    from deepinfer.engine.ops import conformance
    from deepinfer.engine.ops.registry import load_all

    unknown = set(names) - set(load_all())
    if unknown:
        raise SystemExit("no op is registered as %s" % ", ".join(sorted(unknown)))
    count, worst, bad = 0, 0.0, 0
    for outcome in conformance.run(bench.module, "cuda", "cuda:0", seed, only=set(names)):
        count += 1
        worst = max(worst, outcome.worst if outcome.passed else 0.0)
        if not outcome.passed:
            bad += 1
            print("DIFFERS %s, %s: %s" % (outcome.op, outcome.case, outcome.detail))
    print("%d cases of %s, seed %d: %d differ; worst passing error %.3g" % (count, ", ".join(names), seed, bad, worst))
    return bad


def main(doc: str | None, measure: Callable[[Bench], Iterable[Row]], ops: Iterable[str]) -> int:
    """Command line of a bench. Exit code 0: goals met, 1: some missed or a check failed, 3: not run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="compiled kernels (default: build/bringup/nvidia-sm90/libkernels.so)")
    parser.add_argument("--check", action="store_true", help="run the conformance cases of the ops first")
    parser.add_argument("--check-only", action="store_true", help="and nothing else")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.stderr.write("not run: torch is not installed\n")
        return 3
    turn = _wait_for_turn()
    if not torch.cuda.is_available():
        sys.stderr.write("not run: torch sees no CUDA device\n")
        return 3
    library = Path(options.library or ROOT / "build/bringup/nvidia-sm90/libkernels.so")
    if not library.is_file():
        sys.stderr.write("not run: there is no library at %s\n  fix: python -m deepinfer.rfc bringup 47\n" % library)
        return 3
    bench = Bench(str(library.resolve()))
    names = list(ops)
    bad = check(bench, names, time.time_ns() % 2**31) if options.check or options.check_only else 0
    rows: list[Row] = []
    if not options.check_only:
        print("%s, reads at %.2f TB/s" % (torch.cuda.get_device_name(), bench.read_ceiling() / 1e12))
        print("%-46s %-16s %9s %9s %7s %9s %7s  %s" % HEADINGS)
        for row in measure(bench):
            rows.append(row)
            print(line(row), flush=True)
    if options.json:
        document = {"device": torch.cuda.get_device_name(), "read_bytes_per_s": bench.read_ceiling()}
        Path(options.json).write_text(
            json.dumps({**document, "rows": [row.document() for row in rows]}, indent=1) + "\n"
        )
    turn.close()
    return int(bool(bad) or any(row.met is False for row in rows))


def _wait_for_turn() -> TextIO:
    """Where several benches were started at once, one at a time measures: whoever holds the lock of the named file."""
    try:
        import triton  # noqa: F401 - imported before the wait, as torch is
    except ImportError:
        sys.stderr.write("not run: triton is not installed\n")
        raise SystemExit(3) from None
    lock = Path(os.environ.get("GPU_BENCH_TURN", os.devnull)).open("a")  # noqa: SIM115 - held to the end
    if "GPU_BENCH_TURN" in os.environ:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


HEADINGS = ("case", "format", "ours us", "bound us", "x bound", "peer us", "x peer", "peer; goal")


def line(row: Row) -> str:
    """One row as text; ``x peer`` above 1 means that ours is faster."""
    bound = ("%9.1f" % row.bound_us, "%7.2f" % (row.us / row.bound_us)) if row.bound_us else ("%9s" % "-", "%7s" % "-")
    peer = "-" if row.baseline_us is None else "%.1f" % row.baseline_us
    ratio = "-" if row.baseline_us is None else "%.2f" % (row.baseline_us / row.us)
    goal = "" if not row.goal else "; goal %s: %s" % (row.goal, {True: "met", False: "MISSED", None: "-"}[row.met])
    name = row.baseline or "no peer measured"
    words = (row.case, row.form, row.us, bound[0], bound[1], peer, ratio, name, goal)
    return "%-46s %-16s %9.1f %s %s %9s %7s  %s%s" % words
