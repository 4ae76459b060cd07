"""What is made of compute-sanitizer's summaries, of processes that do not end, and of a host that does not have it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.attest import device_ops, sanitize
from deepinfer.engine.attest.sanitize import Ended, Processes
from deepinfer.engine.ops.registry import load_all


class Checks:
    """What a gate says, by id."""

    def __init__(self, root=None):
        self.root, self.found = root, {}

    def check(self, name, fine, measured="", unit="", bound="", note=""):
        self.found[name] = (fine, measured, note)


def lines(*labels):
    return "".join("at made.op, %s\ntook 0.10 s: made.op, %s\n" % (label, label) for label in labels)


CLEAN = "========= COMPUTE-SANITIZER\n%s2 cases launched\n========= ERROR SUMMARY: 0 errors\n" % lines("a", "b")
RACES = (
    lines("a", "b") + "2 cases launched\n========= Error: Potential WAR hazard\n"
    "=========     Read Thread (31,0,0) at deepinfer::kernels::made::attend(int)+0xd30\n"
    "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"
)
NO_RACES = RACES[: RACES.index("=")] + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def judged(tool, *ended, cases=4):
    run = Checks()
    sanitize.judge(run, tool, "made", cases, [item if isinstance(item, Ended) else Ended(item) for item in ended])
    return run.found[tool + ".made"]


@pytest.mark.parametrize(
    ("tool", "said", "expected"),
    [
        ("memcheck", (CLEAN, CLEAN), (True, 0, "4 of 4 cases launched")),
        ("memcheck", (CLEAN.replace("SUMMARY: 0", "SUMMARY: 7"), CLEAN), (False, 7, "4 of 4 cases launched")),
        ("memcheck", (CLEAN,), (False, 0, "2 of 4 cases launched")),
        ("racecheck", (RACES, RACES), (False, 4, "4 of 4 cases launched; in deepinfer::kernels::made::attend")),
        ("racecheck", (NO_RACES, NO_RACES), (True, 0, "4 of 4 cases launched")),
    ],
)
def test_errors_and_cases_of_all_processes_are_summed(tool, said, expected):
    assert judged(tool, *said) == expected


@pytest.mark.parametrize("first", [True, False])
def test_a_process_without_a_summary_fails_whatever_the_others_say(first):
    said = ["Segmentation fault", CLEAN] if first else [CLEAN, "Segmentation fault"]
    fine, _, note = judged("memcheck", *said, Ended("", late=True))
    assert fine is False and "Segmentation fault" in note
    without_end = CLEAN.replace("2 cases launched\n", "")  # the tool has a summary, the launches broke off
    assert judged("memcheck", without_end, CLEAN)[0] is False


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("", "before its first case"),
        (lines("a") + "at made.op, 3x4, plan 2\n", "at made.op, 3x4, plan 2"),
        (lines("a", "b"), "after made.op, b"),
    ],
)
def test_a_late_process_is_not_judged_and_says_where_it_was(said, place):
    fine, measured, note = judged("racecheck", NO_RACES, Ended(said, late=True))
    assert (fine, measured) == (None, "")
    assert note == "%d of 4 cases launched; 1 of 2 processes did not end in 240 s: %s" % (2 + said.count("took"), place)


def test_errors_that_were_seen_fail_though_another_process_or_the_same_was_late():
    fine, measured, note = judged("racecheck", RACES, Ended("", late=True))
    assert (fine, measured) == (False, 2) and "did not end" in note
    fine, measured, note = judged("racecheck", NO_RACES, Ended(RACES[: RACES.rindex("=========")], late=True))
    assert (fine, measured) == (False, 1) and note.endswith("in deepinfer::kernels::made::attend")


def test_without_the_tool_every_file_of_kernels_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitize.shutil, "which", lambda *words, **named: None)
    run = Checks(tmp_path)
    sanitize.sanitize(run, "lib.so", 1)
    assert {"memcheck.dequant", "racecheck.dequant"} <= set(run.found)
    assert {outcome[0] for outcome in run.found.values()} == {None}


TOOL = """#!/bin/sh
shift; tool=$1; while [ "$1" != -m ]; do shift; done
echo "at $tool, $5 $6 of $7"
echo "took 0.01 s: $tool"
[ "$tool $5 $6" = "memcheck topk 3" ] && exec sleep 60
echo "1 cases launched"
echo "ERROR SUMMARY: 0 errors, RACECHECK SUMMARY: 1 hazards"
"""


def test_a_file_is_one_check_of_processes_that_share_its_cases(monkeypatch, tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text(TOOL)
    program.chmod(0o755)
    monkeypatch.setattr(sanitize, "SECONDS", 3)
    monkeypatch.setattr(sanitize, "CASES", {"memcheck": 6, "racecheck": 6})
    monkeypatch.setattr(sanitize, "files", lambda seed: {"dequant": 6, "topk": 20})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    run = Checks(tmp_path)
    sanitize.sanitize(run, "lib.so", 1)
    late = "4 of 20 cases launched; 1 of 4 processes did not end in 3 s: at memcheck, topk 3 of 4"
    assert run.found["memcheck.topk"] == (None, "", late)
    assert run.found["racecheck.topk"] == (False, 4, "4 of 20 cases launched")
    assert run.found["racecheck.dequant"] == (False, 1, "1 of 6 cases launched")
    assert len(run.found) == 4


GRANDCHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(%d)"


def gone(pid):
    """Whether it ends in five seconds: who was killed and is no child of ours may take a moment to go."""
    stat, deadline = Path("/proc/%d/stat" % pid), time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("sleeps", "late"), [(600, True), (0, False)], ids=["late", "ended"])
def test_no_grandchild_outlives_a_process_late_or_not(sleeps, late, tmp_path):
    begin = time.monotonic()
    (ended,) = Processes(3, tmp_path, os.environ).run([[sys.executable, "-c", GRANDCHILD % sleeps]])
    assert time.monotonic() - begin < 20
    assert ended.late is late
    assert gone(int(ended.said))


def test_sigterm_ends_all_and_those_that_wait_do_not_start(tmp_path):
    command = [sys.executable, "-c", "import os, sys; open(str(os.getpid()), 'w'); " + GRANDCHILD % 600]

    def terminate():
        while not list(tmp_path.iterdir()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    begin = time.monotonic()
    threading.Thread(target=terminate, daemon=True).start()
    with pytest.raises(SystemExit):
        Processes(300, tmp_path, os.environ).run([command] * 200)
    assert time.monotonic() - begin < 60
    started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) < 200
    assert all(gone(pid) for pid in started)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_a_process_prints_on_both_streams_is_kept(tmp_path):
    (ended,) = Processes(60, tmp_path, os.environ).run([["/bin/sh", "-c", "echo one; echo two >&2"]])
    assert ended == Ended("one\ntwo\n")


def test_shards_launch_every_case_of_a_file_once(monkeypatch, capsys):
    """On the CPU: kernels are played by nothing at all."""
    names = [name for name, op in load_all().items() if "cuda" in op.native and "topk" in op.cases.__module__]
    assert names
    launched = []
    for name in names:
        op = load_all()[name]
        cases = op.cases
        monkeypatch.setattr(op, "cases", on_cpu(cases))
        monkeypatch.setitem(op.native, "cuda", lambda module, inputs, outputs, scalars: launched.append(scalars))
    monkeypatch.setattr(device_ops, "DeviceOps", lambda library: None)
    monkeypatch.setattr("deepinfer.engine.ops.conformance.poisoned", lambda *words: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    total, said = sanitize.files(1)["topk"], ""
    for shard in range(4):
        assert sanitize.main("lib.so", 1, "topk", shard, 4) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == "%d cases launched" % out.count("took ")
        said += out
    begun = [line for line in said.splitlines() if line.startswith("at ")]
    assert len(begun) == len(set(begun)) == len(launched) == total
    assert said.count("took ") == total


def on_cpu(cases):
    """The cases of an op, drawn on the CPU whatever device is asked for."""

    def drawn(generator, device):
        return cases(generator, "cpu")

    drawn.__module__ = cases.__module__
    return drawn
