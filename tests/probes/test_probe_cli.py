"""The command line of the probe: wrong words, exit codes, what goes to which stream, and a matrix that is not right."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from probe_hosts import HOSTS, ROOT, ascend_host, b200_host, bare_host
from record_parts import without

from deepinfer.probes import cli
from deepinfer.probes.cli import main

SOUNDS_LIKE_SUPPORT = ("support", "eligible", "works", "compatible", "ready", "can run")


@pytest.fixture(autouse=True)
def any_index(monkeypatch):
    """That the index is fresh is for the tests of the matrix to say; here it only has to be read."""
    from deepinfer.matrix import index

    monkeypatch.setattr(index, "_check_fresh", lambda *_: None)


@pytest.fixture
def replay(tmp_path):
    """Writes a record and returns the words that judge it."""

    def write(record) -> list[str]:
        path = tmp_path / "host.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        return ["--replay", str(path)]

    return write


def shell(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "deepinfer.probe", *words], cwd=ROOT, capture_output=True, text=True, **options
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--jsn"], "DI001", "did you mean '--json'?"),
        (["--recrod", "x"], "DI001", "did you mean '--record'?"),
        (["nvidia"], "DI001", "unknown argument 'nvidia'"),
        (["--json=1"], "DI001", "unknown argument '--json=1'"),
        (["--replay"], "DI001", "--replay needs a value"),
        (["--replay="], "DI001", "--replay needs a value"),
        (["--record", ""], "DI001", "--record needs a value"),
        (["--record", "--json"], "DI001", "--record needs a value"),
        (["--for", "build", "--for", "run"], "DI001", "--for is given twice"),
        (["--for", "both"], "DI001", "--for is 'both'"),
        (["--for=BUILD"], "DI001", "--for is 'BUILD'"),
        (["--no-redact"], "DI001", "--no-redact changes only what --record writes"),
        (["--explain", "driver.vresion"], "DI001", "did you mean 'driver.version'?"),
        (["--explain", "driver"], "DI001", "no check is called 'driver'"),
        (["--replay", "/nonexistent/host.json"], "DI201", "No such file"),
        (["--replay", "/"], "DI201", "Is a directory"),
    ],
)
def test_wrong_words_exit_2_with_a_code_and_a_fix(words, code, said, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(code + ": ") and said in err and "\n  fix: " in err


def test_help_names_every_option_and_every_exit_code(capsys):
    assert main(["--help"]) == 0 and main(["-h"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in (*cli._FLAGS, *cli._VALUES) if option != "-h")
    assert all(" %d " % code in out for code in (0, 2, 3, 4, 5, 6, 7, 70))


def test_version_is_one_line(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("deepinfer ")


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_quiet_prints_nothing_and_the_exit_code_answers(path, capsys):
    expected = json.loads(path.read_text(encoding="utf-8"))["verdict_expected"]
    assert main(["--replay", str(path), "--quiet"]) == expected["exit_code"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("record", "aspect", "code"),
    [
        (b200_host(), "build", 0),
        (b200_host(driver="570.1.1"), "build", 0),
        (b200_host(driver="570.1.1"), "run", 6),
        (b200_host(compiler="12.2.0"), "build", 6),
        (b200_host(compiler="12.2.0"), "run", 0),
        (bare_host(), "build", 5),
        (ascend_host(), "run", 0),
    ],
)
def test_for_one_aspect_takes_its_exit_code(record, aspect, code, replay):
    assert main([*replay(record), "--quiet", "--for", aspect]) == code
    assert main([*replay(record), "--quiet", "--for=" + aspect]) == code


def test_explain_prints_the_promise_and_what_was_found(replay, capsys):
    assert main([*replay(b200_host(driver="570.1.1")), "--explain", "driver.version"]) == 6
    out = capsys.readouterr().out
    assert "new enough" in out and "570.1.1" in out and out.startswith("driver.version (run)")
    assert main([*replay(bare_host()), "--explain", "driver.version"]) == 5
    assert "not applicable" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["DEEPINFER_ACELERATOR", "DEEPINFER_X", "DEEPINFER_"])
def test_an_unknown_variable_of_ours_is_a_note_and_no_error(name, replay, capsys):
    assert main([*replay(b200_host(env={name: "x"})), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert ["unknown environment variable " + name] == [note.split(" (")[0] for note in notes]
    assert "did you mean 'DEEPINFER_ACCELERATOR'" in notes[0] or name != "DEEPINFER_ACELERATOR"


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_a_report_to_a_pipe_has_no_escape_codes_and_a_draft_sounds_like_no_promise(path, capsys):
    for words in ([], ["--all"]):
        code = main(["--replay", str(path), *words])
        out = capsys.readouterr().out
        assert "\033" not in out
        if code == 3:
            first = "\n".join(line for line in out.splitlines() if not line.startswith("next: read"))
            assert not [word for word in SOUNDS_LIKE_SUPPORT if word in first.lower()], first
            assert out.splitlines()[0].split(":")[0] in ("Draft RFC only", "Accepted RFC, nothing built yet")


def on_a_terminal(words, **variables):
    master, slave = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    child = subprocess.Popen(
        [sys.executable, "-m", "deepinfer.probe", *words], cwd=ROOT, stdout=slave, env=dict(env, **variables)
    )
    os.close(slave)
    text = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # the last holder of the other end is gone
            break
        if not chunk:
            break
        text += chunk
    os.close(master)
    child.wait()
    return text


def test_a_terminal_gets_colour_unless_it_is_declined(replay):
    words = replay(b200_host())
    assert b"\033[1;32mEligible" in on_a_terminal(words, TERM="xterm")
    assert b"\033" not in on_a_terminal(words, TERM="xterm", NO_COLOR="1")
    assert b"\033" not in on_a_terminal(words, TERM="dumb")
    assert b"\033" not in on_a_terminal([*words, "--json"], TERM="xterm")


@pytest.mark.parametrize(
    "words", [[], ["--json"], ["--all"], ["--help"], ["--explain", "os.kernel"], ["--version"]], ids=repr
)
def test_a_reader_that_goes_away_gets_no_traceback(words, replay):
    read, write = os.pipe()
    os.close(read)
    hosts = [] if words in (["--help"], ["--version"]) else replay(b200_host())
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer.probe", *hosts, *words], cwd=ROOT, stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_crash(streams, replay):
    command = '"%s" -m deepinfer.probe %s "%s" %s' % (sys.executable, *replay(b200_host()), streams)
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    "record",
    [
        b200_host(env={"DEEPINFER_X": "\n{}", "TORCH_CUDA_ARCH_LIST": "\x1b[31m", "CUDA_VISIBLE_DEVICES": '"}{"'}),
        b200_host(cmds={"nvidia-smi -q": {"rc": 0, "out": "{" * 9999, "err": "noise"}}),
        ascend_host(cmds={"npu-smi info": {"rc": 0, "out": "\x00\ud800", "err": "\x1b[2J"}}),
        without(bare_host(), "/sys", "/dev"),
    ],
    ids=["environment", "noisy tool", "binary tool", "nothing to read"],
)
def test_json_is_one_document_on_stdout_whatever_the_host_says_C_86(record, replay):
    done = shell(*replay(record), "--json", env=dict(os.environ, PYTHONWARNINGS="always"))
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode and done.stderr == ""
    assert document["schema"] == 1


@pytest.mark.parametrize("value", ["\udcff\udcfe", "显卡", "\x1b[31mred", "a\nb"], ids=ascii)
@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_characters_that_the_terminal_has_not_are_escaped(value, encoding, replay):
    words = replay(b200_host(env={"CUDA_VISIBLE_DEVICES": value}))
    done = shell(*words, env=dict(os.environ, PYTHONIOENCODING=encoding), errors="replace")
    assert (done.returncode, done.stderr) == (6, "")
    assert "\x1b" not in done.stdout and done.stdout.count("CUDA_VISIBLE_DEVICES") >= 1


def broken_tree(tmp_path: Path, text: str | None, change: str = "") -> Path:
    """A copy of the tree whose index is ``text``, or whose TOML changed after it was rendered."""
    import shutil

    for folder in ("probes", "matrix", "rfcs", "deepinfer"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    if text is not None:
        (tmp_path / "matrix" / "index.json").write_text(text, encoding="utf-8")
    if change:
        (tmp_path / "matrix" / "entries" / change).write_text("# another entry\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "change", "code"),
    [
        ("{", "", "DI101"),
        ("[]", "", "DI101"),
        ('{"schema": 1}', "", "DI101"),
        ('{"schema": 99}', "", "DI102"),
        ("[" * 100000, "", "DI101"),
        (None, "nvidia-sm999.toml", "DI103"),
    ],
    ids=["torn", "list", "empty", "newer", "deep", "stale"],
)
def test_an_index_that_is_not_right_judges_nobody(text, change, code, tmp_path, replay):
    words = replay(b200_host())
    done = subprocess.run(
        [sys.executable, "-S", "-m", "deepinfer.probe", *words],  # -S: an editable install would come first
        cwd=broken_tree(tmp_path / "tree", text, change),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(code + ": ") and "\n  fix: " in done.stderr


def test_a_fault_of_our_own_is_one_line_with_a_place_and_exit_70(monkeypatch, capsys, replay):
    from deepinfer.probes import judge

    monkeypatch.delenv("PYTHONDEVMODE", raising=False)
    monkeypatch.setattr(judge, "judge", lambda *_, **__: 1 // 0)
    assert main(replay(b200_host())) == 70
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("DI070: ZeroDivisionError") and "test_probe_cli.py:" in err and "fix: " in err


def test_a_check_that_breaks_is_an_unknown_finding_and_the_report_still_prints(monkeypatch, capsys, replay):
    from deepinfer.probes.check import REGISTERED, load_all

    load_all()
    monkeypatch.setattr(REGISTERED["os.kernel"], "function", lambda case: case.nothing)
    assert main([*replay(b200_host()), "--json"]) == 7
    document = json.loads(capsys.readouterr().out)
    found = {item["id"]: item["found"] for item in document["checks"]}
    assert found["os.kernel"].startswith("the check itself failed: AttributeError")
