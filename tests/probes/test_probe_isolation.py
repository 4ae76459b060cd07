"""What the probe does not need: a network, rights, other modules, much memory, a new Python."""

from __future__ import annotations

import ast
import builtins
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from probe_hosts import ROOT, b200_host, bare_host

from deepinfer.probes.fact import absent
from deepinfer.probes.live import LiveView

HEAVY = ("argparse", "subprocess", "dataclasses", "typing", "hashlib", "tomllib", "ctypes", "socket", "ssl", "asyncio")
MEMORY_BYTES = 4 << 20


def python(code: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, **options)


WITHOUT_NETWORK = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x40000000) != 0:
    sys.exit(77)
from deepinfer.probes.cli import main
sys.exit(main(sys.argv[1:]))
"""
AUDITED = """
import sys
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith("socket.") or "urllib" in event else None)
from deepinfer.probes.cli import main
code = main(sys.argv[1:])
sys.stderr.write(",".join(seen))
sys.exit(code)
"""


def test_a_host_without_any_network_gets_the_same_document_C_85():
    done = python(WITHOUT_NETWORK, "--json")
    if done.returncode == 77:
        pytest.skip("not run: this machine makes no network namespace; the audit test below stands")
    plain = python("import sys; from deepinfer.probes.cli import main; sys.exit(main(['--json']))")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.parametrize("words", [["--json"], ["--all"], ["--for", "build"]], ids=lambda words: "".join(words))
def test_no_socket_is_ever_opened_C_85(words):
    done = python(AUDITED, *words)
    assert done.stderr == "" and done.returncode in (0, 3, 4, 5, 6, 7)


@pytest.fixture
def bare(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(bare_host()))
    return str(path)


def modules_after(*words: str) -> set[str]:
    code = (
        "import sys; from deepinfer.probes.cli import main; main(sys.argv[1:]); sys.stderr.write(','.join(sys.modules))"
    )
    return set(subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, %r); %s" % (str(ROOT), code), *words],
        capture_output=True, text=True, cwd=ROOT,
    ).stderr.split(","))  # fmt: skip


def test_a_host_without_an_accelerator_costs_no_heavy_module(bare):
    for words in (["--replay", bare], ["--replay", bare, "--json"], ["--help"]):
        loaded = modules_after(*words)
        assert "deepinfer.probes.cli" in loaded and not [name for name in HEAVY if name in loaded]


def test_the_live_probe_loads_no_heavy_module_either():
    loaded = modules_after("--quiet")
    assert "deepinfer.probes.live" in loaded and not [name for name in HEAVY if name in loaded]


def peak(code: str) -> int:
    """Least peak memory in bytes of three runs of ``code``, measured by the kernel."""
    tail = "\nimport sys; sys.stderr.write(open('/proc/self/status').read())"
    sizes = []
    for _ in range(3):
        text = subprocess.run([sys.executable, "-I", "-S", "-c", code + tail], capture_output=True, text=True).stderr
        sizes.append(next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM")))
    return min(sizes)


def test_peak_memory_is_within_four_mebibytes_of_a_bare_interpreter(bare):
    start = "import sys; sys.path.insert(0, %r); from deepinfer.probes.cli import main; main(%r)"
    assert peak(start % (str(ROOT), ["--replay", bare])) - peak("pass") <= MEMORY_BYTES


def old_python() -> str:
    """A Python 3.8 that starts: a shim of pyenv may be on PATH and start nothing."""
    roots = [os.environ.get("PYENV_ROOT", ""), str(Path.home() / ".pyenv"), "/opt/pyenv"]
    found = [str(path) for root in roots if root for path in sorted(Path(root).glob("versions/3.8*/bin/python3.8"))]
    for path in (shutil.which("python3.8"), *found):
        if path and subprocess.run([path, "-V"], capture_output=True).returncode == 0:
            return path
    return ""


@pytest.mark.parametrize("host", ["live", "bare", "b200"])
def test_the_probe_runs_on_python_3_8_and_says_what_the_engine_needs(host, tmp_path):
    interpreter = old_python()
    if not interpreter:
        pytest.skip("not run: no Python 3.8")
    path = tmp_path / "host.json"
    path.write_text(json.dumps(bare_host() if host == "bare" else b200_host(python="3.8.18")))
    words = [] if host == "live" else ["--replay", str(path)]
    done = subprocess.run(
        [interpreter, "-m", "deepinfer.probe", *words, "--json"], cwd=ROOT, capture_output=True, text=True
    )
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode and done.stderr == ""
    if host == "b200":
        assert [item["outcome"] for item in document["checks"] if item["id"] == "python.version"] == ["fail"]


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "probes").rglob("*.py")), ROOT / "matrix" / "index.py"], ids=lambda path: path.name
)
def test_every_file_of_the_probe_parses_as_python_3_8(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def unreadable(monkeypatch, *roots: str) -> None:
    """From here on nothing below ``roots`` can be read by this process."""

    def guard(function):
        def call(path, *rest, **named):
            if str(path).startswith(roots):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *rest, **named)

        return call

    for owner, name in ((os, "open"), (os, "listdir"), (os, "stat"), (os, "readlink"), (builtins, "open")):
        monkeypatch.setattr(owner, name, guard(getattr(owner, name)))


def test_a_host_whose_proc_sys_and_dev_cannot_be_read_is_undetermined_with_the_reason(monkeypatch, capsys):
    from deepinfer.matrix import index
    from deepinfer.probes.cli import main

    monkeypatch.setattr(index, "_check_fresh", lambda *_: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(LiveView, "nvml", lambda _: absent("nvml"))  # a real driver would answer all the same
    unreadable(monkeypatch, "/proc/", "/sys", "/dev")
    code = main(["--all"])
    monkeypatch.undo()
    out = capsys.readouterr().out
    assert code == 7 and out.startswith("Undetermined") and "Permission denied" in out
