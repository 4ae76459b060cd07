"""The command line: right words do, wrong words get a code, a nearest word and a fix."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from deepinfer.matrix.__main__ import main
from deepinfer.matrix.load import ROOT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a command is missing"),
        (["rendr"], "did you mean 'render'?"),
        (["--root"], "expected one argument"),
        (["list", "--jsn"], "did you mean '--json'?"),
        (["list", "--js"], "'--js' is not understood"),
        (["render", "--chek"], "did you mean '--check'?"),
        (["show"], "required: id"),
        (["show", "nvidia-sm09"], "did you mean 'nvidia-sm90'?"),
        (["show", "nvidia-sm90", "more"], "'more' is not understood"),
        (["--root", "/nonexistent", "list"], "no matrix to read"),
    ],
)
def test_wrong_words_exit_2_with_a_fix(words, said, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("DI") and said in err and "  fix: " in err


def test_list_is_aligned_and_complete(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    column = lines[0].index("STATUS")
    assert len(lines) == 14
    assert {line[column:].split()[0] for line in lines[1:]} == {"supported", "draft", "unsupported", "reference"}


def test_list_json_is_the_index_entries(capsys):
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((ROOT / "matrix/index.json").read_text())["entries"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nvidia-sm100", ["CUDA >=13,<14", "driver >=580.65.06", "press report", "ACCELERATOR=nvidia", "waiver"]),
        ("nvidia-sm90", ["RFC 47", "blocker     capacity", "150754820096", "no variable selects it", "2026-11-30"]),
        ("nvidia-sm103", ["refuses to", "sm_100a", "10.3"]),
        ("host-cpu", ["DEEPINFER_ACCELERATOR=cpu", "never detected"]),
    ],
)
def test_show_tells_all(name, said, capsys):
    assert main(["show", name]) == 0
    out = capsys.readouterr().out
    assert [words for words in said if words not in out] == []


def test_show_json(capsys):
    assert main(["show", "nvidia-sm90", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["entry"]["id"] == "nvidia-sm90"
    assert data["rfc"]["blockers"]
    assert data["sources"][0]["read"] == "2026-11-30"


def test_check_lists_what_is_out_of_date(root, edit, capsys):
    assert main(["--root", str(root), "render", "--check"]) == 0
    edit("matrix/entries/nvidia-sm103.toml", "(B300, GB300)", "(GB300)")
    assert main(["--root", str(root), "render", "--check"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "matrix/index.json" in err and "README.md" in err and "fix: " in err
    assert main(["--root", str(root), "render"]) == 0
    assert main(["--root", str(root), "render", "--check"]) == 0


def test_findings_exit_1_and_are_all_printed(root, edit, capsys):
    edit("matrix/entries/nvidia-sm103.toml", 'vendor = "nvidia"', 'vendor = "nvida"')
    edit("matrix/model.toml", "payload_bytes = 510286023000", "payload_bytes = 499000000000")
    assert main(["--root", str(root), "render"]) == 1
    err = capsys.readouterr().err
    assert "matrix/entries/nvidia-sm103.toml:4: M4" in err and "matrix/model.toml:5: M18" in err and "DI113" in err


def test_a_closed_pipe_is_no_error():
    code = "import sys; from deepinfer.matrix.__main__ import main; sys.exit(main(['show', 'nvidia-sm120']))"
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, stdout=reader.stdin, stderr=subprocess.PIPE, text=True)
    reader.stdin.close()
    assert (done.returncode, done.stderr) == (0, "")
