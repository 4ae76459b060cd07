"""Records: written whole or not at all, read back to the same verdict, refused with a code of their own."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_hosts import HOSTS, INDEX, ascend_host, b200_host, bare_host, judged

from deepinfer.errors import DeepInferError
from deepinfer.probes import judge_host
from deepinfer.probes.cli import main
from deepinfer.probes.judge import judge
from deepinfer.probes.record_form import check_record
from deepinfer.probes.recorded import RecordedView, load_record
from deepinfer.probes.recording import RecordingView, RecordUnwritable, complete, write_record
from deepinfer.probes.redact import redact
from deepinfer.probes.wish import Wish

GOOD = b200_host(count=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def any_index(monkeypatch):
    """That the index is fresh is for the tests of the matrix to say; here it only has to be read."""
    from deepinfer.matrix import index

    monkeypatch.setattr(index, "_check_fresh", lambda *_: None)


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_what_was_asked_of_a_host_is_enough_to_judge_it_again(path, tmp_path):
    view = RecordingView(RecordedView(check_record(json.loads(path.read_text(encoding="utf-8")))))
    first = judge(view, INDEX, Wish())
    complete(view, INDEX)
    file = tmp_path / "record.json"
    write_record(redact(view.record()), str(file))
    again = judge(load_record(str(file)), INDEX, Wish())
    assert json.dumps(again.document()) == json.dumps(first.document())
    for aspect in ("build", "run"):
        assert (
            judge(load_record(str(file)), INDEX, Wish(), aspect=aspect).document()
            == judge(view.inner, INDEX, Wish(), aspect=aspect).document()
        )


@pytest.mark.parametrize("target", [entry["id"] for entry in INDEX["entries"]])
@pytest.mark.parametrize("host", [b200_host(), ascend_host(), bare_host()], ids=["nvidia", "ascend", "none"])
def test_a_record_can_be_judged_for_every_target(host, target):
    wish = Wish()
    wish.target = target
    view = RecordingView(RecordedView(check_record(json.loads(json.dumps(host)))))
    judge(view, INDEX, Wish())
    complete(view, INDEX)
    again = judged(view.record(), wish=wish)
    assert again.document() == judged(host, wish=wish).document()


def wrong_types():
    for key in ("machine", "system", "python", "env", "files", "dev", "listed", "folders", "absent", "unknown", "cmds"):
        for value in (None, 1, "text", [1], {"a": 1}, True):
            good = {"machine": str, "system": str}.get(key)
            if (good and isinstance(value, str)) or (key == "python" and isinstance(value, dict)):
                continue
            yield pytest.param({**GOOD, key: value}, "DI202", id="%s=%r" % (key, value))
    for value in (0, -1, "1", 1.5, True, None, []):
        yield pytest.param({**GOOD, "schema": value}, "DI202", id="schema=%r" % (value,))
    for value in (1, None, [], {"nvml": 1}, {"nvml": None}):
        yield pytest.param({**GOOD, "libs": value}, "DI202", id="libs=%r" % (value,))
    for answer in (None, 1, {}, {"rc": "0"}, {"rc": 0, "out": 1}, {"rc": 0, "err": []}, {"rc": 1.5}):
        yield pytest.param({**GOOD, "cmds": {"g++": answer}}, "DI202", id="answer=%r" % (answer,))
    for value in ([], None, 1, "x", True):
        yield pytest.param(value, "DI202", id="record=%r" % (value,))
    yield pytest.param({key: value for key, value in GOOD.items() if key != "machine"}, "DI202", id="no machine")
    yield pytest.param({**GOOD, "schema": 2}, "DI203", id="newer")
    yield pytest.param({**GOOD, "schema": 10**30, "machine": None}, "DI203", id="much newer, other shape")


@pytest.mark.parametrize(("record", "code"), list(wrong_types()))
def test_a_malformed_record_has_its_own_code_and_names_the_key(record, code, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    assert main(["--replay", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(code + ": ") and str(path) in err and "\n  fix: " in err


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"\xff\xfe", b"[" * 200000, b'{"machine": "x"} more', b"\x00" * 100, b"{'machine': 1}"],
    ids=["empty", "torn", "words", "not utf-8", "deep", "two documents", "zeros", "python"],
)
def test_a_file_that_is_no_json_is_unreadable_and_no_traceback(content, tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    assert main(["--replay", str(path)]) == 2
    assert capsys.readouterr().err.startswith("DI201: ")
    with pytest.raises(DeepInferError):
        judge_host(str(path))


def test_deep_nesting_of_a_value_is_refused_or_judged_and_never_a_traceback(tmp_path, capsys):
    path = tmp_path / "r.json"
    for depth in (900, 990, 5000, 100000):
        path.write_text('{"machine": "x86_64", "extra": %s1%s}' % ("[" * depth, "]" * depth), encoding="utf-8")
        assert main(["--replay", str(path), "--quiet", "--record", str(tmp_path / "o.json")]) in (2, 7)
        assert not capsys.readouterr().err.startswith("DI070")


@settings(max_examples=150, deadline=None)
@given(record=st.dictionaries(st.sampled_from([*GOOD, "other"]), JSON, max_size=4))
def test_any_json_object_is_refused_with_a_code_or_judged(record):
    try:
        view = RecordedView(check_record(record))
    except DeepInferError as error:
        assert error.code in ("DI202", "DI203")
        return
    judge(view, INDEX, Wish())


@settings(max_examples=150, deadline=None)
@given(value=JSON, key=st.sampled_from(["version", "implementation", "headers", "site_packages"]))
def test_any_interpreter_facts_are_judged(value, key):
    verdict = judged({**GOOD, "python": {**GOOD["python"], key: value}})
    assert verdict.verdict in ("eligible", "fixable", "undetermined")


@pytest.mark.parametrize("place", ["missing/r.json", "file/r.json", "folder"])
def test_a_place_that_cannot_be_written_leaves_nothing_half_written(place, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    host = tmp_path / "host.json"
    host.write_text(json.dumps(GOOD))
    before = sorted(os.listdir(tmp_path))
    assert main(["--replay", str(host), "--record", str(tmp_path / place)]) == 2
    assert capsys.readouterr().err.startswith("DI204: ")
    assert sorted(os.listdir(tmp_path)) == before and os.listdir(tmp_path / "folder") == []


def test_a_disk_that_is_full_keeps_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RecordUnwritable, match="No space left"):
        write_record(GOOD, str(path))
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["r.json"])


def test_replay_and_record_together_redact_a_record(tmp_path, capsys):
    real = "52a3a85d-3c55-4b1e-9a11-0123456789ab"
    path, copy, whole = tmp_path / "in.json", tmp_path / "out.json", tmp_path / "whole.json"
    path.write_text(json.dumps(GOOD).replace("00000000-0000-0000-0000-000000000001", real))
    assert main(["--replay", str(path), "--record", str(copy), "--json"]) == 0
    first = capsys.readouterr().out
    assert real not in copy.read_text() and real in path.read_text()
    assert main(["--replay", str(copy), "--json"]) == 0
    assert capsys.readouterr().out == first
    assert main(["--replay", str(path), "--record", str(whole), "--no-redact", "--quiet"]) == 0
    assert real in whole.read_text() and json.loads(whole.read_text()) == json.loads(path.read_text())


def test_a_record_may_be_written_to_standard_output(tmp_path):
    import subprocess
    import sys

    from probe_hosts import ROOT

    path = tmp_path / "in.json"
    path.write_text(json.dumps(GOOD))
    words = [sys.executable, "-m", "deepinfer.probe", "--replay", str(path), "--quiet", "--record", "/dev/stdout"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["machine"] == "x86_64"


@pytest.mark.parametrize("target", ["", "host-cpu", "nvidia-sm100", "ascend-950"])
def test_a_record_of_this_very_machine_replays_to_the_same_document(target):
    from deepinfer.probes.live import LiveView

    wish = Wish()
    wish.target = target
    view = RecordingView(LiveView())
    verdict = judge(view, INDEX, wish)
    complete(view, INDEX)
    plain = redact(json.loads(json.dumps(view.record())))
    assert json.dumps(judged(plain, wish=wish).document(), indent=1) == json.dumps(verdict.document(), indent=1)


def test_of_a_vendors_header_only_the_lines_that_are_read_are_kept(tmp_path):
    from deepinfer.probes.live import LiveView

    header = tmp_path / "cuda.h"
    header.write_text("/* a licence */\n#define CUDA_VERSION 13000\nint cuInit(void);\n")
    view = RecordingView(LiveView())
    found = view.lines(str(header), r"CUDA_VERSION\s+\d+")
    assert found.value == "#define CUDA_VERSION 13000\n"
    assert view.files[str(header.resolve())] == found.value
    assert view.lines(str(tmp_path / "none.h"), "x").is_absent
