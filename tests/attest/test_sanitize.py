"""What is made of compute-sanitizer's summaries, and of a host that does not have it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.attest import sanitize


class Checks:
    """What a gate says, by id."""

    def __init__(self, root=None):
        self.root, self.found = root, {}

    def check(self, name, fine, measured="", unit="", bound="", note=""):
        self.found[name] = (fine, measured, note)


CLEAN = "========= COMPUTE-SANITIZER\n31 cases launched\n========= ERROR SUMMARY: 0 errors\n"
RACES = (
    "31 cases launched\n========= Error: Potential WAR hazard\n"
    "=========     Read Thread (31,0,0) at deepinfer::kernels::made::attend(int)+0xd30\n"
    "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"
)


@pytest.mark.parametrize(
    ("tool", "said", "expected"),
    [
        ("memcheck", CLEAN, (True, 0, "31 cases launched")),
        ("memcheck", CLEAN.replace("SUMMARY: 0", "SUMMARY: 7"), (False, 7, "31 cases launched")),
        ("memcheck", CLEAN.replace("31 cases", "0 cases"), (False, 0, "0 cases launched")),
        ("racecheck", RACES, (False, 2, "31 cases launched; in deepinfer::kernels::made::attend")),
        ("racecheck", RACES.replace("2 hazards", "0 hazards"), (True, 0, "31 cases launched")),
        ("racecheck", sanitize.LATE, (None, "", sanitize.LATE)),
    ],
)
def test_a_summary_is_read(tool, said, expected):
    run = Checks()
    sanitize.judge(run, tool, "made", said)
    assert run.found[tool + ".made"] == expected


def test_a_run_without_a_summary_fails():
    run = Checks()
    sanitize.judge(run, "memcheck", "made", "Segmentation fault")
    assert run.found["memcheck.made"][0] is False
    assert "Segmentation fault" in run.found["memcheck.made"][2]


def test_without_the_tool_every_file_of_kernels_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitize.shutil, "which", lambda *words, **named: None)
    run = Checks(tmp_path)
    sanitize.sanitize(run, "lib.so", 1)
    assert {"memcheck.dequant", "racecheck.dequant"} <= set(run.found)
    assert {outcome[0] for outcome in run.found.values()} == {None}
