"""The bench of the probe: what it measures and judges, shown on small scripts in the tools' place."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # `python bench/probe.py` starts with its own folder there, too

import peers
import probe as bench

HASH_OF_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
BURN = "import time\nwhile time.process_time() < %g: pass\nprint('{}')\n"
QUICK = "print('{}')"


@pytest.fixture
def script(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def run(script, tmp_path, monkeypatch, capsys):
    """The bench on three scripts, one round; no peer is ever fetched."""
    monkeypatch.setattr(bench, "PEERS", [peer._replace(pip=("--no-index",)) for peer in bench.PEERS])

    def start(ours, flashinfer=None, torch=QUICK, *words):
        monkeypatch.setattr(bench, "OURS", (script("ours.py", ours),))
        words = ["--rounds", "1", "--cache", str(tmp_path / "cache"), *words]
        for name, text in (("flashinfer", flashinfer), ("torch", torch)):
            if text is not None:
                words += ["--%s-file" % name, script(name + ".py", text)]
        code = bench.main(words)
        return code, capsys.readouterr().out

    return start


def result(cpu_s, peak_mib, not_run=None):
    made = bench.Result(not_run)
    made.samples = [bench.Sample(value, value, 0) for value in cpu_s]
    made.peaks_mib = list(peak_mib)
    return made


def judged(ours, flashinfer, bare):
    results = {"ours": ours, "flashinfer": flashinfer, "torch": result([2.0], [40]), "bare": bare}
    return bench.judge(results)


# --- what is judged ---


@pytest.mark.parametrize(
    ("cpu", "peak", "outcomes", "code"),
    [
        ([0.06], [14.0], ["pass", "no goal", "pass"], 0),
        ([0.061], [13.0], ["MISS", "no goal", "pass"], 1),
        ([0.06], [13.9, 14.1], ["pass", "no goal", "MISS"], 1),
        ([0.9, 0.02, 0.03], [13.0], ["pass", "no goal", "pass"], 0),
    ],
    ids=["at-the-bounds", "slow", "one-large-run", "median-not-mean"],
)
def test_goals_are_bounds_of_the_median_time_and_the_largest_peak(cpu, peak, outcomes, code):
    goals = judged(result(cpu, peak), result([0.1], [18]), result([0.01], [10.0, 10.2]))
    assert [goal.outcome for goal in goals] == outcomes
    assert bench.exit_code(goals) == code


def test_a_ratio_is_ours_over_the_baseline():
    cpu, torch, peak = judged(result([0.03], [12.5]), result([0.1], [18]), result([0.01], [10]))
    assert (cpu.ours, cpu.base, cpu.value) == pytest.approx((30, 100, 0.3))
    assert torch.value == pytest.approx(0.015)
    assert peak.value == pytest.approx(2.5)


@pytest.mark.parametrize("missing", ["ours", "flashinfer", "bare"])
def test_what_was_not_run_has_not_passed(missing):
    made = {"ours": result([0.01], [9]), "flashinfer": result([1.0], [18]), "bare": result([0.01], [9])}
    made[missing] = bench.Result("no network")
    goals = judged(**made)
    assert "not run: %s: no network" % missing in [goal.outcome for goal in goals]
    assert bench.exit_code(goals) == 3


def test_a_miss_outweighs_what_was_not_run():
    assert bench.exit_code(judged(result([0.01], [20]), bench.Result("gone"), result([0.01], [9]))) == 1


# --- what is measured ---


def test_time_includes_children_and_the_own_peak_does_not(script):
    child = "import time; x = b'x' * (80 << 20)\nwhile time.process_time() < 0.2: pass"
    tool = bench.Tool(
        "parent", (script("parent.py", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', %r])" % child),)
    )
    assert bench.run_once(tool).cpu_s >= 0.2
    assert bench.own_peak_mib(tool) < 60


def test_the_own_peak_is_neither_that_of_the_bench_nor_what_is_only_reserved(script):
    ballast = b"x" * (120 << 20)
    small = bench.Tool("small", (script("small.py", "import mmap\nx = mmap.mmap(-1, 200 << 20)"),))
    assert bench.own_peak_mib(small) < 60 < len(ballast)
    large = bench.Tool("large", (script("large.py", "x = b'x' * (80 << 20)"),))
    assert bench.own_peak_mib(large) > 80


@pytest.mark.parametrize("words", [("-c", "import sys; sys.exit(5)"), ("-m", "leaves")], ids=["code", "module"])
def test_the_own_peak_is_read_from_a_tool_that_exits_early(words, script, tmp_path, monkeypatch):
    script("leaves.py", "import sys\nassert sys.argv[1:] == [] and __name__ == '__main__'\nsys.exit(5)")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert 1 < bench.own_peak_mib(bench.Tool("leaves", words, exits=(5,))) < 100


@pytest.mark.parametrize(
    ("text", "prints", "said"),
    [
        ("import sys; sys.exit(70)", "text", "exit 70: no message"),
        ("raise KeyError('k')", "text", "exit 1: KeyError: 'k'"),
        ("pass", "text", "it printed nothing"),
        ("print('{')", "json", "its output is not JSON"),
        ("import time; time.sleep(9)", "text", "no answer in 0.3 s"),
        ("print('{}')", "json", None),
        ("pass", "nothing", None),
    ],
)
def test_a_tool_that_does_not_do_its_work_is_refused(text, prints, said, script, monkeypatch):
    monkeypatch.setattr(bench, "RUN_LIMIT_S", 0.3 if "sleep" in text else 60.0)
    assert bench.refusal(bench.Tool("tool", (script("tool.py", text),), prints=prints)) == said


def test_a_tool_that_hangs_later_is_ended(script, monkeypatch):
    monkeypatch.setattr(bench, "RUN_LIMIT_S", 0.3)
    assert bench.run_once(bench.Tool("hangs", (script("hangs.py", "import time; time.sleep(9)"),))).exit_code == -9


def test_a_tool_that_breaks_in_a_later_round_is_not_run(script, tmp_path):
    flag = tmp_path / "flag"
    text = "import os, sys\nif os.path.exists(%r): sys.exit(9)\nopen(%r, 'w').close()\nprint(1)" % (
        str(flag),
        str(flag),
    )
    tools = [bench.Tool("breaks", (script("breaks.py", text),)), bench.Tool("holds", ("-c", "pass"), prints="nothing")]
    results = bench.measure(tools, 3)
    assert results["breaks"].not_run == "exit 9 in round 1"
    assert len(results["holds"].samples) == len(results["holds"].peaks_mib) == 3


def test_rounds_are_interleaved_and_turn_around(script, tmp_path):
    log = tmp_path / "log"
    tools = [bench.Tool(n, (script(n + ".py", "open(%r, 'a').write(%r)\nprint(1)" % (str(log), n)),)) for n in "ab"]
    bench.measure(tools, 2)
    assert log.read_text() == "ab" + "aabb" + "bbaa"  # warm-up, then a time and a peak each


# --- the whole run ---


def test_a_faster_tool_passes_and_says_by_how_much(run):
    code, out = run(QUICK, BURN % 0.3)
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("cpu, flashinfer"))
    assert line.endswith("pass") and "x 0.60" in line
    assert "no goal" in out and "the ratio is the figure" in out


def test_a_slower_tool_misses(run):
    code, out = run(BURN % 0.3, QUICK)
    assert code == 1
    assert next(line for line in out.splitlines() if line.startswith("cpu, flashinfer")).endswith("MISS")


def test_a_large_tool_misses(run):
    code, out = run("x = b'x' * (30 << 20)\nprint('{}')", BURN % 0.3)
    assert code == 1
    assert next(line for line in out.splitlines() if line.startswith("own peak")).endswith("MISS")


def test_a_probe_that_fails_fast_has_not_passed(run):
    code, out = run("import sys; sys.exit(70)", BURN % 0.2)
    assert code == 3
    assert "not run: exit 70" in out and "pass" not in out


def test_json_holds_every_figure(run):
    code, out = run(QUICK, BURN % 0.3, None, "--json")
    document = json.loads(out)
    assert document["exit_code"] == code == 0
    assert document["tools"]["torch"]["not_run"].startswith("pip download torch==2.13.0: ")
    assert set(document["tools"]["ours"]) == {"cpu_s", "wall_s", "peak_mib", "exit_code"}
    spread = document["tools"]["flashinfer"]["cpu_s"]
    assert 0.3 <= spread["min"] <= spread["median"] <= spread["max"]
    assert [goal["outcome"][:7] for goal in document["goals"]] == ["pass", "not run", "pass"]


def test_a_peer_that_cannot_be_had_is_not_run(run):
    code, out = run(QUICK, None)
    assert code == 3
    assert "flashinfer not run: pip download flashinfer-python==0.7.4: " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "must be at least 1"),
        (["--rounds", "many"], "invalid int value"),
        (["--cache", str(BENCH / "cache")], "inside the repository"),
        (["--round", "3"], "unrecognized arguments"),
        (["--nothing"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_exit_2(words, said):
    done = subprocess.run([sys.executable, str(BENCH / "probe.py"), *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


# --- the peers' files ---


def wheel(folder: Path, text: str) -> peers.Peer:
    folder.mkdir()
    with zipfile.ZipFile(folder / "peer-1.0-py3-none-any.whl", "w") as file:
        file.writestr("peer/tool.py", text)
        file.writestr("peer-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: peer\nVersion: 1.0\n")
        file.writestr("peer-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("peer-1.0.dist-info/RECORD", "")
    return peers.Peer(
        "peer", "peer==1.0", "peer/tool.py", HASH_OF_EMPTY, pip=("--no-index", "--find-links", str(folder))
    )


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this interpreter has no pip")
def test_only_the_one_file_of_the_wheel_is_kept(tmp_path):
    peer, cache = wheel(tmp_path / "wheels", ""), tmp_path / "cache"
    path = peers.find(peer, None, cache)
    assert list(cache.iterdir()) == [path]
    assert peers.find(peer._replace(pip=("--no-index",)), None, cache) == path  # the second time nothing is fetched


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this interpreter has no pip")
@pytest.mark.parametrize(
    ("text", "member", "said"),
    [("changed", "peer/tool.py", "is not the file of peer==1.0"), ("", "peer/gone.py", "KeyError")],
    ids=["other-bytes", "no-such-file"],
)
def test_another_file_is_not_measured(text, member, said, tmp_path):
    peer = wheel(tmp_path / "wheels", text)._replace(member=member)
    with pytest.raises(peers.Unavailable, match=said):
        peers.find(peer, None, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder belongs")
    with pytest.raises(peers.Unavailable, match="Error: "):
        peers.find(bench.PEERS[0], None, tmp_path / "cache")


def test_a_named_file_is_taken_as_it_is(tmp_path):
    (tmp_path / "named.py").write_text("pass")
    assert peers.find(bench.PEERS[0], tmp_path / "named.py", tmp_path / "none") == tmp_path / "named.py"
    with pytest.raises(peers.Unavailable, match="is not a file"):
        peers.find(bench.PEERS[0], tmp_path / "gone.py", tmp_path / "none")
