"""``python bench/probe.py``: what one run of the probe costs, beside its peers and a bare interpreter.

All tools run in turn, round by round, under the interpreter that runs this file, so a busy machine slows all of them
alike: the ratio between two lines is the figure, an absolute time is not.

The peers' files are not part of this repository. They are taken out of the wheels that pip downloads into a cache
folder, or named with ``--flashinfer-file`` and ``--torch-file``. A peer that cannot be had is "not run", never passed.

Exit codes: 0 every goal is met, 1 a goal is missed, 2 wrong arguments, 3 a goal could not be judged.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CPU_GOAL = 0.6  # of flashinfer's stand-alone file
PEAK_GOAL_MIB = 4.0  # over a bare interpreter
RUN_LIMIT_S = 60.0
FETCH_LIMIT_S = 900.0
ANSWERS = (0, 3, 4, 5, 6, 7)  # the probe's verdicts; its other codes mean that it did not do its work

# Runs a tool as its own command line does, then says what this one process took at most.
# Neither wait4 nor RUSAGE_SELF can tell: wait4's ru_maxrss is that of the largest process of the tree (torch's file
# starts pip), and both keep the parent's peak across fork and exec, so a bench of 20 MiB would hide a probe of 12.
# VmHWM is the same counter without that inheritance. Nothing is imported for it, so that it adds nothing to a tool.
_PEAK_CODE = """
import sys
try:
    words = sys.argv[1:]
    if words[0] == "-m":
        import runpy
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        exec(words[1])
    else:
        sys.argv = words
        with open(words[0], encoding="utf-8") as file:
            code = compile(file.read(), words[0], "exec")
        exec(code, {"__name__": "__main__", "__file__": words[0]})
finally:
    with open("/proc/self/status") as file:
        peak = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    sys.stderr.write("\\npeak_kib=" + peak[0])
"""


class Peer(NamedTuple):
    """A file inside a wheel. The hash says that every run measures the same file."""

    name: str
    requirement: str
    member: str
    sha256: str
    words: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()


PEERS = (
    Peer(
        "flashinfer",
        "flashinfer-python==0.7.4",
        "flashinfer/collect_env.py",
        "0858bcbb4ff07d433438fe03213672f77b282561b7e7c3b7de3390dbce5c5968",
        words=("--json",),
    ),
    Peer(
        "torch",
        "torch==2.13.0",
        "torch/utils/collect_env.py",
        "05ffc3f6a80dc8d04d21b750c79c6fe809e07032ce317461abbbfbbc1a2d284d",
        # The file is the same in every wheel of a release, and macOS has the smallest one: no device code in it.
        pip=("--platform", "macosx_14_0_arm64", "--python-version", "3.12", "--implementation", "cp"),
    ),
)


class Tool(NamedTuple):
    name: str
    words: tuple[str, ...]  # what follows the interpreter
    exits: tuple[int, ...] = (0,)
    prints: str = "text"  # or "json", or "nothing"


class Sample(NamedTuple):
    cpu_s: float
    wall_s: float
    exit_code: int


class Result:
    """What the rounds said of one tool, or why it was not run."""

    def __init__(self, not_run: str | None = None) -> None:
        self.not_run = not_run
        self.samples: list[Sample] = []
        self.peaks_mib: list[float] = []

    def column(self, name: str) -> list[float]:
        return self.peaks_mib if name == "peak_mib" else [getattr(sample, name) for sample in self.samples]

    def document(self) -> dict[str, Any]:
        if self.not_run:
            return {"not_run": self.not_run}
        spread = {name: _spread(self.column(name)) for name in ("cpu_s", "wall_s", "peak_mib")}
        return {**spread, "exit_code": self.samples[-1].exit_code}


def _spread(values: list[float]) -> dict[str, float]:
    ordered = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, 5) for name, value in ordered.items()}


class Unavailable(Exception):
    """The file of a peer cannot be had; ``str()`` is the reason."""


def find(peer: Peer, named: Path | None, cache: Path) -> Path:
    """The peer's file: the named one, the cached one, or fetched now. Raises :class:`Unavailable`."""
    if named is not None:
        if not named.is_file():
            raise Unavailable("%s is not a file" % named)
        return named.resolve()
    path = cache / (peer.requirement.replace("==", "-") + "-" + Path(peer.member).name)
    try:
        if not path.is_file():
            fetch(peer, path)
        seen = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, zipfile.BadZipFile, KeyError, subprocess.TimeoutExpired) as error:
        raise Unavailable("%s: %s" % (type(error).__name__, error)) from error
    if seen != peer.sha256:
        raise Unavailable("%s is not the file of %s (sha256 %s...); remove it" % (path, peer.requirement, seen[:12]))
    return path


def fetch(peer: Peer, path: Path) -> None:
    """Download the wheel and keep only the one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [*peer.pip, "--dest", folder, peer.requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise Unavailable("pip download %s: %s" % (peer.requirement, _last(done.stderr)))
        with zipfile.ZipFile(wheels[0]) as wheel:
            part = Path(folder) / "part"
            part.write_bytes(wheel.read(peer.member))
        os.replace(part, path)  # never half a file under the final name


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _environment() -> dict[str, str]:
    # The bytecode of an imported module is cached on every user's machine; without it the probe would compile each time.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def refusal(tool: Tool) -> str | None:
    """One run that fills the caches: why the tool cannot be measured, or None. What fails early would look quick."""
    command = [sys.executable, *tool.words]
    try:
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return "no answer in %g s" % RUN_LIMIT_S
    if done.returncode not in tool.exits:
        return "exit %d: %s" % (done.returncode, _last(done.stderr.decode(errors="replace")))
    if tool.prints == "nothing":
        return None
    try:
        if tool.prints == "json":
            json.loads(done.stdout)
    except ValueError:
        return "its output is not JSON"
    return None if done.stdout.strip() else "it printed nothing"


def run_once(tool: Tool) -> Sample:
    """One run. The times of wait4 include every descendant that was waited for, such as nvidia-smi or pip."""
    begin = time.perf_counter()
    null = subprocess.DEVNULL
    command = [sys.executable, *tool.words]
    process = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdin=null, stdout=null, stderr=null)
    timer = threading.Timer(RUN_LIMIT_S, os.kill, (process.pid, 9))
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        timer.cancel()
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen warns that nobody waited
    return Sample(usage.ru_utime + usage.ru_stime, wall, process.returncode)


def own_peak_mib(tool: Tool) -> float:
    """What the process of the tool itself took at most, its children left out."""
    command = [sys.executable, "-c", _PEAK_CODE, *tool.words]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=RUN_LIMIT_S)
    return int(done.stderr.rpartition("peak_kib=")[2]) / 1024


def measure(tools: list[Tool], rounds: int) -> dict[str, Result]:
    """Run the tools in turn, every other round backwards: none then always follows the heaviest one."""
    results = {tool.name: Result(refusal(tool)) for tool in tools}
    for turn in range(rounds):
        for tool in tools if turn % 2 == 0 else reversed(tools):
            result = results[tool.name]
            if result.not_run:
                continue
            sample = run_once(tool)
            result.samples.append(sample)
            if sample.exit_code not in tool.exits:
                result.not_run = "exit %d in round %d" % (sample.exit_code, turn + 1)
                continue
            try:
                result.peaks_mib.append(own_peak_mib(tool))
            except (ValueError, subprocess.TimeoutExpired) as error:
                result.not_run = "its peak could not be read: %s" % error
    return results


class Goal(NamedTuple):
    """One comparison. ``value`` is a ratio for times and a difference for memory."""

    name: str
    baseline: str
    unit: str
    limit: float | None
    ours: float | None = None
    base: float | None = None
    value: float | None = None
    outcome: str = ""


def judge(results: dict[str, Result]) -> list[Goal]:
    wanted = (
        Goal("cpu", "flashinfer", "ms", CPU_GOAL),
        Goal("cpu", "torch", "ms", None),
        Goal("own peak", "bare", "MiB", PEAK_GOAL_MIB),
    )
    return [_judge_one(goal, results["ours"], results[goal.baseline]) for goal in wanted]


def _judge_one(goal: Goal, ours: Result, base: Result) -> Goal:
    for name, result in (("ours", ours), (goal.baseline, base)):
        if result.not_run:
            return goal._replace(outcome="not run: %s: %s" % (name, result.not_run))
    if goal.unit == "ms":
        left, right = (1000 * statistics.median(result.column("cpu_s")) for result in (ours, base))
        value = left / right
    else:  # a bound of memory holds for the worst run, and these runs differ by little
        left, right = max(ours.peaks_mib), min(base.peaks_mib)
        value = left - right
    outcome = "no goal" if goal.limit is None else "pass" if value <= goal.limit else "MISS"
    return goal._replace(ours=left, base=right, value=value, outcome=outcome)


def exit_code(goals: list[Goal]) -> int:
    bound = [goal.outcome for goal in goals if goal.limit is not None]
    return 1 if "MISS" in bound else 3 if set(bound) != {"pass"} else 0


def text(results: dict[str, Result], goals: list[Goal]) -> str:
    lines = ["%-11s%-23s%-23s%-23s%s" % ("", "cpu ms", "wall ms", "own peak MiB", "exit")]
    lines.append("%-11s%s" % ("tool", "min / median / max     " * 3))
    for name, result in results.items():
        if result.not_run:
            lines.append("%-11snot run: %s" % (name, result.not_run))
            continue
        cells = []
        for column, scale in (("cpu_s", 1000), ("wall_s", 1000), ("peak_mib", 1)):
            cells.append(" / ".join("%.1f" % (scale * value) for value in _spread(result.column(column)).values()))
        lines.append("%-11s%-23s%-23s%-23s%d" % (name, *cells, result.samples[-1].exit_code))
    lines += ["", "%-24s%8s%10s%12s%10s  %s" % ("goal", "ours", "baseline", "compared", "at most", "outcome")]
    for goal in goals:
        label = "%s, %s, %s" % (goal.name, goal.baseline, goal.unit)
        if goal.ours is None or goal.base is None or goal.value is None:
            lines.append("%-24s%s" % (label, goal.outcome))
            continue
        form = "x %.2f" if goal.unit == "ms" else "+ %.2f"
        limit = "-" if goal.limit is None else form % goal.limit
        lines.append("%-24s%8.1f%10.1f%12s%10s  %s" % (label, goal.ours, goal.base, form % goal.value, limit, goal.outcome))
    return "\n".join(lines)
