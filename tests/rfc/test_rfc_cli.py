"""The command line of the RFC path: right words, wrong words, new entries, bring-up refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer import rfc
from deepinfer.matrix.load import ROOT, load
from deepinfer.matrix.rules import check

HOSTS = ROOT / "tests/hosts"
WRONG = [
    ([], "a command is missing"),
    (["chek"], "did you mean 'check'?"),
    (["check", "--bse", "x"], "did you mean '--base'?"),
    (["check", "--today", "soon"], "--today is 'soon'"),
    (["status"], "required: N"),
    (["status", "x"], "invalid int value"),
    (["status", "99"], "there is no RFC 99"),
    (["report"], "required: --base"),
    (["new"], "an RFC starts from facts"),
    (["new", "--from-probe", "--replay", "nowhere.json"], "nowhere.json"),
    (["bringup", "99"], "there is no RFC 99"),
    (["bringup", "1"], "RFC 1 lists no entry"),
    (["bringup", "46"], "no kernel of ours exists for vendor ascend"),
    (["bringup", "47", "--entry", "nvidia-sm100"], "RFC 47 lists nvidia-sm90"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) or "none" for words, _ in WRONG])
def test_wrong_words_end_with_2_a_code_and_a_fix(words, said, capsys):
    assert rfc.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("DI")
    assert said in shown.err
    assert "fix: " in shown.err


def test_status_is_data_too(capsys):
    assert rfc.main(["status", "47", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    gates = data["entries"][0]["gates"]
    assert [gate["name"] for gate in gates] == ["facts", "capacity", "probe", "build", "conformance", "smoke", "bench"]
    last = ["python -m deepinfer.attest %s --entry nvidia-sm90" % name for name in ("smoke", "bench")]
    assert [gate["command"] for gate in gates[-2:]] == last
    assert {blocker["kind"] for blocker in data["blockers"]} <= {"capacity", "kernel", "toolkit", "evidence"}


def test_ascend_has_no_command_for_what_needs_kernels(capsys):
    rfc.main(["status", "46", "--json"])
    gates = {gate["name"]: gate["command"] for gate in json.loads(capsys.readouterr().out)["entries"][0]["gates"]}
    assert gates["build"] == gates["conformance"] == "no command yet"
    assert gates["probe"].startswith("python -m deepinfer.attest probe")


def new(root: Path, host: str, *more: str) -> list[str]:
    words = ["new", "--from-probe", "--replay", str(HOSTS / host), "--root", str(root), "--today", "2026-11-30"]
    return [*words, *more]


def test_dry_run_writes_nothing(root, capsys):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert rfc.main(new(root, "b300x8_r610.json", "--dry-run", "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["number"] == 48
    assert data["turned"] is True
    assert set(data["files"]) == {"rfcs/0048-sm103.md", "matrix/entries/nvidia-sm103.toml"}
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_device_that_no_entry_lists_gets_one(root, capsys, tmp_path):
    text = (HOSTS / "b300x8_r610.json").read_text().replace("10.3", "10.7").replace("0x3182", "0x4444")
    host = root / "rubin.json"
    host.write_text(text.replace("B300 SXM6 AC", "R100"))
    assert rfc.main(new(root, str(host), "--number", "60", "--slug", "rubin")) == 0
    entry = (root / "matrix/entries/nvidia-sm107.toml").read_text()
    assert 'compute_capabilities = ["10.7"]' in entry
    assert '"10de:4444" = "NVIDIA R100"' in entry
    assert "memory_bytes = 288400343040" in entry
    assert (root / "rfcs/0060-rubin.md").is_file()
    assert [finding for finding in check(load(root)) if finding.rule[0] == "M"] == []
    assert rfc.main(new(root, str(host))) == 2, "its entry is there now, but the index does not know yet"
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "code"),
    [("b200x8_baremetal.json", "DI403"), ("h20_3e_x4.json", "DI403"), ("no_gpu.json", "DI404")],
)
def test_what_needs_no_proposal_gets_none(host, code, root, capsys):
    assert rfc.main(new(root, host)) == 2
    assert capsys.readouterr().err.startswith(code)


def test_a_number_that_is_taken_is_refused(root, capsys):
    assert rfc.main(new(root, "b300x8_r610.json", "--number", "47")) == 2
    assert "DI405: number 47 is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", ["ascend910b_a2_cann85.json", "rtx5090_wsl2.json", "gb10_dgx_spark.json", "a100x8_old_stack.json"]
)
def test_any_neighbor_can_be_proposed(host, root, capsys):
    assert rfc.main(new(root, host)) == 0, capsys.readouterr().err
    assert check(load(root)) == []
