"""Real programs on PATH that hang, lie and shout: the probe is bounded, leaves no child, never says "absent"."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from probe_hosts import INDEX, b200_host, finding

from deepinfer.probes import child
from deepinfer.probes.facts import compiler
from deepinfer.probes.judge import judge
from deepinfer.probes.live import LiveView
from deepinfer.probes.record_form import check_record
from deepinfer.probes.recorded import RecordedView
from deepinfer.probes.wish import Wish

SHORT = 0.6
TOOLS = ["nvidia-smi", "npu-smi", "g++", "nvcc"]
HANGING = {
    "hangs": "#!/bin/sh\nexec sleep 600\n",
    "ignores SIGTERM": "#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 600; done\n",
    "closes its output and hangs": "#!/bin/sh\nexec >&- 2>&-\nexec sleep 600\n",
    "prints and hangs": "#!/bin/sh\necho begin\nexec sleep 600\n",
    "shouts for ever": "#!/bin/sh\nexec yes\n",
    "reads for ever": "#!/bin/sh\ncat\nexec sleep 600\n",
}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts programs into a folder that is first on PATH."""
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % tmp_path)

    def make(name: str, content: str | bytes, mode: int = 0o755) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    return make


def ours() -> list[int]:
    """Living children of this process, and whatever they left in this session with one of their groups."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc/%s/stat" % name).read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == os.getsid(0) and int(fields[2]) != os.getpgid(0) and fields[0] != "Z":
                found.append(int(name))
    return found


def settled(before):
    """Those that are left. Who was killed and is no child of ours may take a moment to go."""
    deadline = time.monotonic() + 5
    left = ours()
    while not set(left) <= before and time.monotonic() < deadline:
        time.sleep(0.02)
        left = ours()
    return set(left)


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("kind", list(HANGING), ids=[kind.replace(" ", "-") for kind in HANGING])
def test_a_tool_that_never_ends_is_unknown_in_time_and_leaves_no_child_C_26(name, kind, tool):
    tool(name, HANGING[kind])
    before = set(ours())
    begin = time.monotonic()
    fact = LiveView().run([name], seconds=SHORT if name == "nvidia-smi" else 0.15)
    assert time.monotonic() - begin < SHORT + 1.5
    assert fact.is_unknown and "no answer in" in fact.reason
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert settled(before) <= before


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_probe_C_26(tool):
    tool("nvidia-smi", "#!/bin/sh\necho answer\nsleep 600 &\nexit 0\n")
    before = set(ours())
    begin = time.monotonic()
    fact = LiveView().run(["nvidia-smi"])
    assert time.monotonic() - begin < 2
    assert fact.is_present and fact.value.out == "answer\n"
    assert settled(before) <= before


def test_ten_megabytes_of_output_are_cut_and_read_to_the_end(tool):
    tool("nvidia-smi", "#!/bin/sh\nhead -c 10000000 /dev/zero | tr '\\0' x\nhead -c 10000000 /dev/zero >&2\nexit 3\n")
    fact = LiveView().run(["nvidia-smi"])
    assert fact.value.rc == 3
    assert (len(fact.value.out), len(fact.value.err)) == (child.OUTPUT_LIMIT, child.OUTPUT_LIMIT)


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("#!/bin/sh\n", 0o644, "Permission denied"),
        (b"", 0o755, "Exec format"),
        ("#!/nonexistent\n", 0o755, "No such file"),
    ],
    ids=["not-executable", "empty-file", "no-interpreter"],
)
def test_a_tool_that_cannot_be_started_is_unknown_with_its_reason_and_not_absent(name, content, mode, reason, tool):
    tool(name, content, mode)
    fact = LiveView().run([name])
    assert fact.is_unknown and "cannot be started" in fact.reason and reason in fact.reason


def test_a_folder_called_like_a_tool_is_unknown(tool, tmp_path):
    (tmp_path / "nvidia-smi").mkdir()
    assert LiveView().run(["nvidia-smi"]).is_unknown


def test_a_tool_that_is_nowhere_is_absent_C_13(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "%s:/nonexistent:/etc/passwd" % tmp_path)
    assert LiveView().run(["nvidia-smi"]).is_absent


def test_children_get_the_c_locale_their_own_group_and_no_input_C_07(tool, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setenv("LANGUAGE", "zh")
    tool("nvidia-smi", '#!/bin/sh\necho "$LC_ALL|$LANG|$LANGUAGE|$(cut -d" " -f5 /proc/$$/stat)|$$|$(cat)"\n')
    words = LiveView().run(["nvidia-smi"]).value.out.strip().split("|")
    assert words[:3] == ["C", "C", "C"] and words[3] == words[4] and words[5] == ""


@pytest.mark.parametrize("signal", [6, 9, 11, 15])
def test_a_tool_that_is_killed_has_a_negative_exit_code(signal, tool):
    tool("nvidia-smi", "#!/bin/sh\nkill -%d $$\n" % signal)
    assert LiveView().run(["nvidia-smi"]).value.rc == -signal


class ToolsOfThisMachine(RecordedView):
    """A recorded host whose programs are the ones on this machine's PATH."""

    def run(self, argv, stdin="", seconds=10.0):
        return LiveView().run(argv, stdin, SHORT)


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ("#!/bin/sh\nexec sleep 600\n", "undetermined"),
        (b"#!/bin/sh\nprintf '\\377\\376\\000\\001binary'\n", "undetermined"),
        ("#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'\n", "undetermined"),
        ("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n", "fixable"),
        ("#!/bin/sh\necho 'No devices were found'; exit 6\n", "fixable"),
        (b"", "undetermined"),
    ],
    ids=["hang", "garbage", "exit 0 with an error", "mismatch", "no devices", "empty file"],
)
def test_what_a_real_nvidia_smi_does_reaches_the_verdict_and_never_hides_the_device(content, verdict, tool):
    tool("nvidia-smi", content)
    tool("g++", "#!/bin/sh\necho '13 3 0 __clang_major__ __clang_minor__ __INTEL_LLVM_COMPILER \"13.3.0\"'\n")
    host = ToolsOfThisMachine(check_record(b200_host(count=2)))
    result = judge(host, INDEX, Wish(), aspect="run")
    assert result.verdict == verdict and result.entry["id"] == "nvidia-sm100" and len(result.devices) == 2
    found = finding(result, "driver.answers")
    assert found.outcome == ("fail" if verdict == "fixable" else "unknown") and found.found


@pytest.mark.parametrize(
    ("content", "unknown", "words"),
    [
        ("#!/bin/sh\nexec sleep 600\n", True, "no answer"),
        (b"#!/bin/sh\nprintf '\\377\\376'\n", True, "the preprocessor answered"),
        ("#!/bin/sh\necho 'cc1plus: not found' >&2; exit 1\n", False, "cannot compile C++: cc1plus: not found"),
        (b"", True, "Exec format error"),
    ],
    ids=["hang", "garbage", "no-cc1plus", "empty"],
)
def test_a_real_compiler_that_does_not_answer_is_unknown_and_one_that_fails_says_why(content, unknown, words, tool):
    tool("g++", content)
    view = LiveView()
    view.run = lambda argv, stdin="", seconds=SHORT: LiveView.run(view, argv, stdin, SHORT)  # type: ignore[method-assign]
    found = compiler.on_path(view)
    assert found.unknown is unknown and words in found.problem


def test_a_real_wrapper_around_nvcc_is_asked_for_its_root_C_64(tool, tmp_path):
    from deepinfer.probes.facts import cuda

    root = tmp_path / "real" / "cuda-13.0"
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    (root / "include" / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    real = root / "bin" / "nvcc"
    real.write_text('#!/bin/sh\n[ "$1" = --dryrun ] && echo "#\\$ TOP=%s/bin/.." >&2\nexit 0\n' % root)
    real.chmod(real.stat().st_mode | stat.S_IXUSR)
    tool("nvcc", '#!/bin/sh\nexec %s "$@"\n' % real)
    kit = cuda.on_path(LiveView())
    assert kit is not None and (kit.root, kit.version) == (str(root), (13, 0))
