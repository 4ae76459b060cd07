"""Held against an older revision: steps, histories, evidence; and the report for reviewers."""

from __future__ import annotations

import datetime as dt
import json
import subprocess

import pytest
from made_evidence import document, put

from deepinfer import rfc
from deepinfer.matrix.base import NoSuchBase, at
from deepinfer.matrix.rfc_check import check

RFC47, SM90, SM103 = "rfcs/0047-sm90.md", "matrix/entries/nvidia-sm90.toml", "matrix/entries/nvidia-sm103.toml"


@pytest.fixture
def git(root):
    def run(*words):
        base = ["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "commit.gpgsign=false"]
        return subprocess.run([*base, *words], cwd=root, check=True, capture_output=True, text=True).stdout

    run("init", "-q")
    put(root, document(root))
    run("add", "-A")
    run("commit", "-qm", "base")
    return run


def rules(root):
    with at(root, "HEAD") as (base, old):
        found = check(root, dt.date(2026, 12, 1), base, old).findings
    return [finding.rule for finding in found if finding.rule != "R22"]


def test_nothing_changed(root, git):
    assert rules(root) == []


def test_a_status_moves_one_step(root, git, edit):
    edit(SM90, 'status = "draft"', 'status = "deprecated"')
    assert "R5" in rules(root)


def test_a_neighbor_becomes_nothing_but_a_draft(root, git, edit):
    edit(SM103, 'status = "unsupported"', 'status = "withdrawn"')
    assert "R5" in rules(root)


def test_nothing_new_begins_as_supported(root, git):
    text = (root / "matrix/entries/nvidia-sm100.toml").read_text()
    for old, new in (("sm100", "sm107"), ("10.0", "10.7"), ("10de:29", "10de:77"), ('or = "nvidia"', 'or = "x"')):
        text = text.replace(old, new)
    (root / "matrix/entries/nvidia-sm107.toml").write_text(text)
    assert "R5" in rules(root)


def test_a_history_is_only_added_to(root, git, edit):
    edit(RFC47, "no gate had been run by us", "all gates had been run")
    assert rules(root) == ["R5"]


def test_an_entry_that_was_proposed_does_not_vanish(root, git, edit):
    (root / SM90).unlink()
    (root / RFC47).unlink()
    for path in (root / "matrix/evidence").rglob("*.json"):
        path.rename(path)
    found = rules(root)
    assert "R5" in found
    assert set(found) <= {"R5", "R15"}


def test_evidence_is_kept(root, git):
    next((root / "matrix/evidence").rglob("*.json")).unlink()
    assert rules(root) == ["R21"]


def test_a_revision_that_does_not_exist_is_an_error_with_a_fix(root, git):
    with pytest.raises(NoSuchBase, match="'nowhere' cannot be read"), at(root, "nowhere"):
        pass


def test_the_report_says_what_a_reviewer_asks(root, git, edit, capsys):
    edit(SM90, 'status = "draft"', 'status = "accepted"')
    edit(SM90, "count = 4", "count = 8")
    code = rfc.main(["report", "--base", "HEAD", "--root", str(root), "--today", "2026-12-01"])
    text = capsys.readouterr().out
    assert code == 1, "the history lacks the step"
    assert "step       draft -> accepted" in text
    assert "configuration[sm90-h20-3e-4].count: 4 -> 8" in text
    assert "needed by somebody else than: DeepInfer maintainers" in text
    assert "gate       conformance  stale" in text, "its machines are others now"
    assert "510286023000 of 1206038560768 bytes" in text
    assert "unsourced: rfcs/0047-sm90.md" in text, "its figures are those of four devices"
    rfc.main(["report", "--base", "HEAD", "--root", str(root), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in data["changed"]] == [SM90]


def test_check_takes_a_base(root, git, edit, capsys):
    words = ["check", "--base", "HEAD", "--root", str(root), "--today", "2026-12-01"]
    edit(RFC47, "no gate had been run by us", "all gates had been run")
    assert rfc.main(words) == 1
    assert "R5: its history was rewritten" in capsys.readouterr().out
