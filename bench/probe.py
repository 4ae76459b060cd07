"""``python bench/probe.py``: what one run of the probe costs, beside its peers and a bare interpreter.

All tools run in turn, round by round, under the interpreter that runs this file, so a busy machine slows all of them
alike: the ratio between two lines is the figure, an absolute time is not.

The peers' files are not part of this repository. They are taken out of the wheels that pip downloads into a cache
folder, or named with ``--flashinfer-file`` and ``--torch-file``. A peer that cannot be had is "not run", never passed.

Exit codes: 0 every goal is met, 1 a goal is missed, 2 wrong arguments, 3 a goal could not be judged.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from peers import PEERS, Unavailable, find, last_line

ROOT = Path(__file__).resolve().parent.parent
CPU_GOAL = 0.6  # of flashinfer's stand-alone file
PEAK_GOAL_MIB = 4.0  # over a bare interpreter
RUN_LIMIT_S = 60.0
OURS = ("-m", "deepinfer.probe", "--json")
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


def _environment() -> dict[str, str]:
    # Imported modules are cached as bytecode on a user's machine; with this variable the probe would compile each time.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def refusal(tool: Tool) -> str | None:
    """One run that fills the caches: why the tool cannot be measured, or None. What fails early would look quick."""
    command = [sys.executable, *tool.words]
    try:
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return "no answer in %g s" % RUN_LIMIT_S
    if done.returncode not in tool.exits:
        return "exit %d: %s" % (done.returncode, last_line(done.stderr.decode(errors="replace")))
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
    if done.returncode not in tool.exits:
        raise ValueError("exit %d" % done.returncode)
    return int(done.stderr.rpartition("peak_kib=")[2]) / 1024


def measure(tools: list[Tool], rounds: int) -> dict[str, Result]:
    """Run the tools in turn, every other round backwards, so that no tool always runs after the same other one."""
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
    lines = ["%-11s%-23s%-23s%-23s%s" % ("", "cpu ms", "wall ms", "own peak MiB", "exit code")]
    lines.append("tool       min / median / max     min / median / max     min / median / max")
    for name, result in results.items():
        if result.not_run:
            lines.append("%-11snot run: %s" % (name, result.not_run))
            continue
        cells = []
        for column, scale in (("cpu_s", 1000), ("wall_s", 1000), ("peak_mib", 1)):
            cells.append(" / ".join("%.1f" % (scale * value) for value in _spread(result.column(column)).values()))
        cells.append(str(result.samples[-1].exit_code))
        lines.append("%-11s%-23s%-23s%-23s%s" % (name, *cells))
    lines += ["", "%-24s%8s%10s%12s%10s  %s" % ("goal", "ours", "baseline", "compared", "at most", "outcome")]
    for goal in goals:
        label = "%s, %s, %s" % (goal.name, goal.baseline, goal.unit)
        if goal.ours is None or goal.base is None or goal.value is None:
            lines.append("%-24s%s" % (label, goal.outcome))
            continue
        form = "x %.2f" if goal.unit == "ms" else "+ %.2f"
        limit = "-" if goal.limit is None else form % goal.limit
        row = (label, goal.ours, goal.base, form % goal.value, limit, goal.outcome)
        lines.append("%-24s%8.1f%10.1f%12s%10s  %s" % row)
    return "\n".join(lines)


def notes() -> list[str]:
    """What a reader must know of this run to judge its figures."""
    said = ["the machine may be shared: the ratio is the figure, not the time"]
    if importlib.util.find_spec("torch"):
        said.append("torch is installed in this interpreter: the peers import it and pay for that")
    return said


def document(results: dict[str, Result], goals: list[Goal], rounds: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "rounds": rounds,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "notes": notes(),
        "tools": {name: result.document() for name, result in results.items()},
        "goals": [goal._asdict() for goal in goals],
        "exit_code": exit_code(goals),
    }


def parse(words: list[str]) -> argparse.Namespace:
    says = (__doc__ or "").partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="bench/probe.py", description=says, allow_abbrev=False)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deepinfer-bench"
    parser.add_argument("--rounds", type=int, default=15, help="measured runs of each tool (15)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")
    parser.add_argument("--cache", type=Path, default=default, help="where the peers' files are kept (%(default)s)")
    for peer in PEERS:
        says = "the file %s of %s, where it is at hand" % (peer.member, peer.requirement)
        parser.add_argument("--%s-file" % peer.name, type=Path, metavar="PATH", help=says)
    options = parser.parse_args(words)
    if options.rounds < 1:
        parser.error("--rounds is %d; it must be at least 1" % options.rounds)
    if ROOT in (options.cache.resolve(), *options.cache.resolve().parents):
        parser.error("--cache lies inside the repository; name a folder outside")
    return options


def main(words: list[str]) -> int:
    options = parse(words)
    tools = [Tool("ours", OURS, ANSWERS, "json")]
    absent = {}
    for peer in PEERS:
        try:
            path = find(peer, getattr(options, peer.name + "_file"), options.cache)
            tools.append(Tool(peer.name, (str(path), *peer.words), prints="json" if "--json" in peer.words else "text"))
        except Unavailable as error:
            absent[peer.name] = Result(str(error))
    tools.append(Tool("bare", ("-c", "pass"), prints="nothing"))
    results = {**measure(tools, options.rounds), **absent}
    goals = judge(results)
    if options.json:
        print(json.dumps(document(results, goals, options.rounds), indent=1))
    else:
        print("%d rounds, Python %s, %s CPUs" % (options.rounds, platform.python_version(), os.cpu_count()))
        print("\n".join([text(results, goals), "", *("note: " + note for note in notes())]))
    return exit_code(goals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
