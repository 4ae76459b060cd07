"""Attest writes evidence that counts for what was run and for nothing else, and names nobody."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from clones import PLANTED, git

from build_support import bringup
from deepinfer import attest
from deepinfer.engine.attest.document import NoRepository, NotSigned, state_of
from deepinfer.engine.attest.host import DeviceElsewhere, facts_of, find, fingerprint
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.matrix.index import load_index
from deepinfer.matrix.render import render
from deepinfer.matrix.rfc_check import check
from deepinfer.matrix.rfc_status import status_of
from deepinfer.probes.live import LiveView
from deepinfer.probes.wish import entry_by_id

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="not run: nvcc is not installed")


def run(repository: Path, view, *words: str, runner=None):
    options = attest.read([*words, "--root", str(repository)])
    return attest.attest(repository, options, view, ["deepinfer.attest", *words], runner)


def checks(document, outcome):
    return [item["id"] for item in document["checks"] if item["outcome"] == outcome]


def test_probe_of_the_entrys_own_machine_passes_every_check(repository, host):
    (document,) = run(repository, host("h20_3e_x4"), "probe")
    assert document["outcome"] == "pass"
    assert document["entry"] == "nvidia-sm90"
    assert checks(document, "fail") == []
    assert "machine" in checks(document, "pass")
    assert document["host"]["memory_bytes"] == [150754820096] * 4
    assert document["host"]["kernel"] == "6.8.0"
    assert not document["dirty"]


def test_another_board_of_the_entry_passes_and_says_what_it_does_not_show(repository, host):
    (document,) = run(repository, host("h200_container"), "probe")
    assert document["outcome"] == "pass"
    skipped = {item["id"]: item["note"] for item in document["checks"] if item["outcome"] == "skip"}
    assert "nothing is shown of them" in skipped["machine"]


def test_no_identifier_is_written(repository, host):
    (document,) = run(repository, host("h20_3e_x4"), "probe", "--by", "ada")
    (path,) = (repository / "matrix/evidence").rglob("*.json")
    text = path.read_text()
    for word in PLANTED:
        assert word not in text
    assert len(document["host"]["fingerprint"]) == 64


def test_two_hosts_are_told_apart(host):
    entry = entry_by_id("nvidia-sm90", load_index())
    one = find(host("h20_3e_x4"), load_index(), entry)
    other = find(host("h20_3e_x4"), load_index(), entry)
    assert fingerprint(one) == fingerprint(other)
    other.devices[0].uuid = "GPU-other"
    assert fingerprint(one) != fingerprint(other)


def test_evidence_counts_and_its_failures_are_kept(repository, host):
    run(repository, host("h20_3e_x4"), "probe", "--by", "ada")
    render(repository)
    report = check(repository, dt.datetime.now(dt.timezone.utc).date())
    assert report.findings == []
    assert {g["name"]: g["state"] for g in status_of(report, 47)["entries"][0]["gates"]}["probe"] == "passed"


def test_a_dirty_tree_does_not_count_and_evidence_makes_none(repository, host, capsys):
    (first,) = run(repository, host("h20_3e_x4"), "probe")
    assert not first["dirty"]
    assert state_of(repository)[1] is False, "evidence itself is no change"
    (repository / "new.txt").write_text("x")
    (second,) = run(repository, host("h20_3e_x4"), "probe")
    assert second["dirty"]
    assert "does not count" in capsys.readouterr().err
    assert "R16" in {finding.rule for finding in check(repository, dt.date(2030, 1, 1)).findings}


def test_no_repository_no_evidence(tmp_path):
    with pytest.raises(NoRepository, match="which commit"):
        state_of(tmp_path)


def test_a_host_without_the_device_is_refused(repository, host):
    with pytest.raises(DeviceElsewhere, match="no device of nvidia-sm90 is here; this host shows NVIDIA B200"):
        run(repository, host("b200x8_baremetal"), "probe", "--entry", "nvidia-sm90")
    assert list((repository / "matrix/evidence").rglob("*.json")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a gate is missing"),
        (["prob"], "did you mean 'probe'?"),
        (["smok"], "did you mean 'smoke'?"),
        (["probe", "--kind", "maintaner"], "did you mean 'maintainer'?"),
        (["probe", "--by", "ada@example.org"], "public handle"),
        (["probe", "--entri", "x"], "did you mean '--entry'?"),
    ],
)
def test_wrong_words(words, said):
    with pytest.raises(UsageError) as caught:
        attest.read(words)
    assert said in str(caught.value)
    assert attest.main(words) == 2


def test_the_memory_of_a_listed_board_must_be_the_entrys(repository, host):
    record = host("h20_3e_x4").record
    text = json.dumps(record).replace("143771 MiB", "143770 MiB")
    (document,) = run(repository, type(host("h20_3e_x4"))(json.loads(text)), "probe")
    assert document["outcome"] == "fail"
    assert checks(document, "fail") == ["device.%d.memory" % number for number in range(4)]
    report = check(repository, dt.datetime.now(dt.timezone.utc).date())
    gate = next(g for g in status_of(report, 47)["entries"][0]["gates"] if g["name"] == "probe")
    assert gate["state"] == "failed", "a failure is kept and shown"


@needs_nvcc
def test_bringup_compiles_exactly_the_entrys_architecture(repository, host, monkeypatch):
    entry = entry_by_id("nvidia-sm90", load_index())
    record = bringup.build(repository, entry, LiveView())
    assert record["architectures"] == ["90a"]
    library, again = bringup.load_record(repository, entry)
    assert again == record
    assert library.parent == repository / "build/bringup/nvidia-sm90"
    assert git(repository, "status", "--porcelain") == "", "a build is no change of the tree"
    library.write_bytes(library.read_bytes() + b"x")
    with pytest.raises(bringup.NoBringup, match="was changed"):
        bringup.load_record(repository, entry)
    bringup.build(repository, entry, LiveView())
    source = repository / "csrc/kernels/dequant/cuda/dequant.cu"
    source.write_text(source.read_text() + "\n")
    with pytest.raises(bringup.NoBringup, match="changed since"):
        bringup.load_record(repository, entry)
    source.write_text(source.read_text() + "this is no C++\n")
    with pytest.raises(bringup.CompileFailed, match="nvcc ended with"):
        bringup.build(repository, entry, LiveView())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nvidia-sm100", bringup.NotProposed),
        ("nvidia-sm103", bringup.NotProposed),
        ("host-cpu", bringup.NotProposed),
        ("ascend-910c", bringup.NoKernels),
    ],
)
def test_bringup_refuses_what_nobody_proposed(name, error):
    with pytest.raises(error):
        bringup.require_proposed(entry_by_id(name, load_index()))


def test_bringup_needs_a_compiler_that_knows_the_architecture(host):
    entry = {**entry_by_id("nvidia-sm90", load_index()), "architectures": ["130a"]}
    with pytest.raises(bringup.NoCompiler, match="nothing here compiles for sm_130a"):
        bringup.toolkit(host("b300x8_r610"), entry)
    kit = bringup.toolkit(host("b300x8_r610"), entry_by_id("nvidia-sm90", load_index()))
    assert kit.root == "/usr/local/cuda-13.3"


def test_an_error_of_ours_is_evidence_too(repository, host, capsys):
    (document,) = run(repository, host("h20_3e_x4"), "conformance")
    assert document["outcome"] == "error"
    assert document["checks"][0]["note"].startswith("DI420")
    assert "DI420" in capsys.readouterr().err


def test_facts_are_those_of_the_view(host):
    assert len(facts_of(host("b300x8_r610")).devices) == 8
    with pytest.raises(DeepInferError):
        find(host("no_gpu"), load_index(), entry_by_id("nvidia-sm90", load_index()))


def test_a_signature_is_written_and_verifies(repository, host):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("not run: ssh-keygen is not installed")
    key = repository.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f", key], check=True)
    run(repository, host("h20_3e_x4"), "probe", "--by", "ada", "--sign", str(key))
    (path,) = (repository / "matrix/evidence").rglob("*.json.sig")
    assert path.with_suffix("").is_file()
    public = key.with_suffix(".pub").read_text().split()
    (repository / "rfcs/allowed_signers").write_text("ada %s %s\n" % (public[0], public[1]))
    today = dt.datetime.now(dt.timezone.utc).date()
    assert "R20" not in {finding.rule for finding in check(repository, today).findings}
    with pytest.raises(NotSigned, match="ssh-keygen"):
        run(repository, host("h20_3e_x4"), "probe", "--sign", str(repository / "nowhere"))


@pytest.mark.parametrize("gate", ["probe", "smoke", "bench"])
def test_the_reference_has_no_gate_that_compares_with_it(repository, host, gate):
    with pytest.raises(UsageError, match="host-cpu is"):
        run(repository, host("no_gpu"), gate, "--entry", "host-cpu")
    assert list((repository / "matrix/evidence").rglob("*.json")) == []
