"""Every recorded host gets the verdict that is written beside it, before and after its identifiers are taken out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from probe_hosts import HOSTS, INDEX, ROOT, judged

from deepinfer.probes.recording import write_record
from deepinfer.probes.redact import redact
from deepinfer.probes.report import LINES, text

THROUGH_THE_COMMAND_LINE = ("b200x8_baremetal", "h20_3e_x4", "gb10_dgx_spark", "no_gpu", "lib_module_mismatch")


def load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture(params=HOSTS, ids=lambda path: path.stem)
def host(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def test_all_recorded_hosts_are_here():
    assert len(HOSTS) >= 24


def test_a_recorded_host_gets_its_verdict(host):
    expected = host["verdict_expected"]
    verdict = judged(host)
    document = verdict.document()
    assert {key: document[key] for key in ("verdict", "exit_code", "entry", "rfc")} == {
        key: expected[key] for key in ("verdict", "exit_code", "entry", "rfc")
    }
    assert verdict.exit_code == expected["exit_code"]
    if expected["verdict"] == "eligible":
        assert verdict.blocking == []
    assert set(expected["blocking"]) <= set(verdict.blocking)


def test_a_recorded_host_shows_the_facts_that_are_written_beside_it(host):
    facts = host["facts_expected"]
    devices = judged(host).document()["devices"]
    if "count" in facts and facts.get("vendor"):
        own = [item for item in devices if item["vendor"] == facts["vendor"]]
        assert facts["count"] in (len(own), sum(1 for item in own if item["exposed"]))
    if facts.get("cc"):
        assert facts["cc"] in {item["arch"] for item in devices} | {None} or devices[0]["identified_by"].startswith(
            "PCI"
        )
    if facts.get("mig"):
        assert devices[0]["partitions"] == facts["mig"]


def test_a_recorded_host_has_a_report_of_at_most_twelve_lines(host):
    verdict = judged(host)
    lines = text(verdict, INDEX).splitlines()
    assert len(lines) <= LINES == 12
    assert lines[-1].startswith("next: ")
    assert all(line.strip() for line in lines)


def test_redacting_a_recorded_host_changes_no_byte_of_its_document(host):
    before = json.dumps(judged(host).document())
    assert json.dumps(judged(redact(host)).document()) == before


def test_a_recorded_host_is_judged_alike_for_each_aspect(host):
    both = judged(host)
    for aspect in ("build", "run"):
        one = judged(host, aspect)
        assert {item.id for item in one.findings} <= {item.id for item in both.findings}
        if both.verdict == "eligible":
            assert one.exit_code == 0


@pytest.mark.parametrize("name", THROUGH_THE_COMMAND_LINE)
def test_the_command_line_prints_the_same_document_for_a_file_and_its_redacted_copy(name, tmp_path):
    path = ROOT / "tests" / "hosts" / (name + ".json")
    copy = tmp_path / "copy.json"
    write_record(redact(load(path)), str(copy))
    outputs = []
    for file in (path, copy):
        done = subprocess.run(
            [sys.executable, "-m", "deepinfer.probe", "--replay", str(file), "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=dict(os.environ, HOME="/nonexistent"),
        )
        assert done.returncode == load(path)["verdict_expected"]["exit_code"] and done.stderr == ""
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["verdict"] == load(path)["verdict_expected"]["verdict"]
