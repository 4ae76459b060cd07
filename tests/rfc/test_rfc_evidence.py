"""Evidence counts for exactly what it is of: each way in which it could serve for something else is one finding."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_evidence import check, document, put

from deepinfer.matrix.compiled import index_of
from deepinfer.matrix.evidence import read_all
from deepinfer.matrix.evidence_form import KEYS, canonical, sealed
from deepinfer.matrix.gates import COVERS, covered
from deepinfer.matrix.load import ROOT, load
from deepinfer.matrix.render import render
from deepinfer.matrix.rfc_check import check as check_all
from deepinfer.matrix.rfc_status import status_of, status_text

UUID = "GPU-5a3c1f9e-0b1d-4c2e-8f00-123456789abc"
# rule, changes (sealed again), words
MUTANTS = [
    ("R13", {"extra": 1}, "unknown key extra"),
    ("R13", {"outcome": "passed"}, "outcome is not one of"),
    ("R13", {"schema": 2}, "schema is not 1"),
    ("R13", {"checks": [{**check("op.x"), "measured": 0.5}]}, "neither an integer nor a text"),
    ("R13", {"commit": "abc"}, "commit is not of the form"),
    ("R15", {"gate": "tests"}, "no gate is called 'tests'"),
    ("R15", {"gate": "facts"}, "no gate is called 'facts'"),
    ("R15", {"entry": "nvidia-sm91"}, "no entry is called"),
    ("R16", {"dirty": True}, "not committed"),
    ("R17", {"started": "2026-11-30T11:00:00Z"}, "ended before it began"),
    ("R17", {"finished": "2027-11-30T11:00:00Z"}, "in the future"),
    ("R18", {"outcome": "fail"}, "not what its checks say"),
    ("R18", {"checks": [check("op.a"), check("op.b", "fail")]}, "not what its checks say"),
    ("R18", {"checks": [check("op.a", "skip")]}, "not what its checks say"),
    ("R18", {"checks": []}, "not what its checks say"),
    ("R19", {"argv": ["--root", "/home/ada/x"]}, "identifier"),
    ("R19", {"checks": [check("op.a", note=UUID)]}, "identifier"),
    ("R19", {"checks": [check("op.a", note="at 192.168.7.9")]}, "identifier"),
    ("R14", None, "digest"),
]


def rules(root):
    return [finding.rule for finding in check_all(root, dt.date(2026, 12, 1)).findings if finding.rule != "R22"]


def column(root, name="nvidia-sm90"):
    return next(entry for entry in index_of(load(root))["entries"] if entry["id"] == name)["engine"]


@pytest.mark.parametrize(
    ("rule", "changes", "words"), MUTANTS, ids=["%s-%d" % (mutant[0], number) for number, mutant in enumerate(MUTANTS)]
)
def test_a_mutant_is_one_finding_and_counts_for_nothing(rule, changes, words, root):
    data = sealed({**document(root), **(changes or {})})
    put(root, data, text="" if changes else canonical(data).replace("H200", "H100", 1))
    found = [finding for finding in check_all(root, dt.date(2026, 12, 1)).findings if finding.rule != "R22"]
    assert [finding.rule for finding in found] == [rule], found
    assert words in found[0].message
    if rule != "R17":  # the clock is not asked when the matrix is compiled
        assert column(root) == "none"


def test_good_evidence_is_no_finding_and_fills_the_column(root):
    put(root, document(root))
    assert rules(root) == []
    assert column(root) == "runs (1 op)"
    render(root)
    report = check_all(root, dt.date(2026, 12, 1))
    assert report.findings == []
    gates = {gate["name"]: gate["state"] for gate in status_of(report, 47)["entries"][0]["gates"]}
    assert gates["conformance"] == "passed"
    assert {gates[name] for name in ("probe", "build", "smoke", "bench")} == {"missing"}
    assert "draft, our engine: runs (1 op)" in status_text(status_of(report, 47))


def test_an_op_with_a_part_that_was_not_run_does_not_count(root):
    put(root, document(root, checks=[check("op.dequant.fp4_row"), check("op.dequant.fp8_block", "skip")]))
    assert column(root) == "none"


def test_build_evidence_says_compiles_and_no_more(root):
    put(root, document(root, "build"))
    assert column(root) == "compiles"


@pytest.mark.parametrize("key", ["gate", "entry", "source_digest", "lane"])
def test_evidence_for_one_thing_serves_no_other(key, root):
    other = {"gate": "build", "entry": "ascend-910c", "source_digest": "sha256:" + "0" * 64, "lane": "wheel"}[key]
    data = document(root)
    moved = sealed({**data, key: other})
    put(root, moved)
    assert column(root) == "none"
    report = check_all(root, dt.date(2026, 12, 1))
    assert "passed" not in {g["state"] for g in status_of(report, 47)["entries"][0]["gates"] if g["name"] != "facts"}


def test_evidence_under_another_name_is_a_finding(root):
    data = document(root)
    put(root, data, "ascend-910c/conformance.20261130T100005Z.abababab.json")
    assert rules(root) == ["R15"]
    assert column(root) == "none"


def test_sources_that_changed_make_it_stale_and_a_failure_is_shown(root):
    put(root, document(root))
    source = root / "csrc/kernels/dequant/cuda/dequant.cu"
    source.write_text(source.read_text() + "\n")
    report = check_all(root, dt.date(2026, 12, 1))
    assert column(root) == "none"
    assert [warning.rule for warning in report.warnings] == ["W3"]
    bad = [check("op.dequant.fp4_row", "fail"), check("op.dequant.fp8_block")]
    put(root, document(root, checks=bad, outcome="fail", finished="2026-11-30T12:00:00Z"))
    report = check_all(root, dt.date(2026, 12, 1))
    gate = next(g for g in status_of(report, 47)["entries"][0]["gates"] if g["name"] == "conformance")
    assert gate["state"] == "failed"
    assert "op.dequant.fp4_row" in gate["detail"]


def test_the_entrys_own_facts_bind_it_and_its_words_do_not(root, edit):
    put(root, document(root))
    edit("matrix/entries/nvidia-sm90.toml", 'title = "NVIDIA SM90 (H100', 'title = "NVIDIA Hopper (H100')
    assert column(root) == "runs (1 op)"
    edit("matrix/entries/nvidia-sm90.toml", 'architectures = ["90a"]', 'architectures = ["90"]')
    assert column(root) == "none"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\udc80"])
def test_what_is_no_evidence_is_one_finding(text, root):
    path = root / "matrix/evidence/nvidia-sm90/probe.20261130T100005Z.abababab.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert rules(root) in (["R13"], ["R14"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(sorted(KEYS)), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(value=JSON, seal=st.booleans())
def test_any_json_is_a_finding_and_no_crash(value, seal, tmp_path_factory):
    root = tmp_path_factory.mktemp("any")
    if seal and isinstance(value, dict):
        value = sealed(value)
    path = root / "matrix/evidence/x/probe.20261130T100005Z.abababab.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    (found,) = read_all(root, ["x"])
    assert len(found.findings) == 1
    assert not found.counts


def test_a_deep_one_is_a_finding(root):
    path = root / "matrix/evidence/x.json"
    for depth in (900, 100000):
        path.write_text('{"digest": %s%s}' % ("[" * depth, "]" * depth))
        assert len(rules(root)) == 1


def test_another_order_of_keys_is_not_canonical(root):
    data = document(root)
    put(root, data, text=json.dumps(data))
    assert rules(root) == ["R13"]


def test_every_changed_byte_is_found(root):
    data = document(root)
    path = put(root, data)
    good = path.read_bytes()
    for place in range(0, len(good), 37):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert rules(root), "byte %d" % place


def test_a_signature_is_verified_where_the_key_is_known(root):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("not run: ssh-keygen is not installed")
    path = put(root, document(root))
    key = root / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f", key], check=True)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "deepinfer-evidence", path]
    subprocess.run(words, check=True, capture_output=True)
    assert rules(root) == ["R20"], "nobody's key is listed"
    public = (root / "key.pub").read_text().split()
    (root / "rfcs/allowed_signers").write_text("ada %s %s\n" % (public[0], public[1]))
    assert rules(root) == []
    (root / "rfcs/allowed_signers").write_text("grace %s %s\n" % (public[0], public[1]))
    assert rules(root) == ["R20"]
    path.unlink()
    assert rules(root) == ["R21"]


def test_evidence_of_kernels_is_bound_to_every_file_that_they_are_made_of():
    names = set(covered(ROOT, "bringup", "conformance"))
    sources = {path for suffix in ("cu", "cuh") for path in ROOT.glob("csrc/kernels/**/*." + suffix)}
    assert len(sources) > 10
    assert {path.relative_to(ROOT).as_posix() for path in sources} <= names
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("engine/ops/*.py")} <= names
    assert names >= set(covered(ROOT, "bringup", "build"))
    for lane, its in COVERS.items():
        for gate, patterns in its.items():
            for pattern in patterns:
                assert any(ROOT.glob(pattern)), "%s %s: %s covers nothing" % (lane, gate, pattern)
