"""A newcomer's hour, as CONTRIBUTING.md tells it: from a recorded host to a draft that the probe knows of.

In a copy of the checkout, with the commands that a newcomer types. The last step is that nothing was gained by it that
was not earned: pip still refuses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import packaging
import pytest

from deepinfer.matrix.load import ROOT

HOST = "tests/hosts/b300x8_r610.json"
PARTS = ("deepinfer", "matrix", "probes", "engine", "build_support", "rfcs", "docs", "csrc", "site")
FILES = ("README.md", "CONTRIBUTING.md", "pyproject.toml", "CMakeLists.txt", "LICENSE", HOST)
GATE = """
import json, sys
from build_support import backend, gate
from deepinfer.probes.recorded import RecordedView
record = json.load(open(sys.argv[1]))
gate.LiveView = lambda: RecordedView(record)
backend.get_requires_for_build_wheel({})
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("walk")
    for name in PARTS:
        ignore = shutil.ignore_patterns("__pycache__", "_native*", "_build_record*")
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


def run(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # An editable installation would be imported before the copy, and written to: -S leaves its finder out.
    command = [sys.executable, "-S", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(packaging.__file__).parents[1])}
    environment.pop("DEEPINFER_ACCELERATOR", None)
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_newcomers_walk(clone: Path) -> None:
    before = run(clone, "-m", "deepinfer.probe", "--replay", HOST)
    assert before.returncode == 4, "no RFC proposes it yet"

    new = run(clone, "-m", "deepinfer.rfc", "new", "--from-probe", "--replay", HOST)
    assert new.returncode == 0, new.stderr
    number = int(re.findall(r"rfc status (\d+)", new.stdout)[0])
    rfc = clone / ("rfcs/%04d-sm103.md" % number)
    entry = clone / "matrix/entries/nvidia-sm103.toml"
    assert "turned into a draft" in new.stdout
    assert entry.read_text().count("[[configuration]]") == 1

    blank = run(clone, "-m", "deepinfer.rfc", "check", "--json")
    assert blank.returncode == 1
    found = json.loads(blank.stdout)["findings"]
    assert {finding["rule"] for finding in found} == {"R1"}, "nothing is missing but the blanks"
    assert len(found) == rfc.read_text().count("FILL:") + entry.read_text().count("FILL:")
    for path in (rfc, entry):
        path.write_text(re.sub(r'FILL: [^"\n]*', "Said in a sentence.", path.read_text()))

    stale = run(clone, "-m", "deepinfer.rfc", "check", "--json")
    assert {finding["rule"] for finding in json.loads(stale.stdout)["findings"]} == {"R22"}
    assert run(clone, "-m", "deepinfer.matrix", "render").returncode == 0
    green = run(clone, "-m", "deepinfer.rfc", "check")
    assert green.returncode == 0, green.stdout
    assert "2307202744320 bytes for the weights, 1796916721320 bytes left" in green.stdout

    probe = run(clone, "-m", "deepinfer.probe", "--replay", HOST)
    assert probe.returncode == 3
    assert "RFC %d" % number in probe.stdout.splitlines()[0]
    status = run(clone, "-m", "deepinfer.rfc", "status", str(number))
    assert "nvidia-sm103: draft, our engine: none" in status.stdout
    assert "attest probe --entry nvidia-sm103" in status.stdout

    refused = run(clone, "-c", GATE, HOST)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Draft RFC only")
    assert rfc.name in refused.stderr

    again = run(clone, "-m", "deepinfer.rfc", "new", "--from-probe", "--replay", HOST)
    assert again.returncode == 2
    assert again.stderr.startswith("DI403: nvidia-sm103, which is draft")


def test_contributing_tells_the_same_walk() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for command in (
        "rfc new --from-probe",
        "rfc check",
        "matrix render",
        "rfc status",
        "attest probe build conformance",
    ):
        assert "python -m deepinfer.%s" % command in text, command
