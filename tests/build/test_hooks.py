"""The hooks as front ends call them: pip itself, metadata, the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from email.parser import Parser
from pathlib import Path

import pytest

from build_support import backend

ROOT = Path(__file__).resolve().parents[2]
REFUSAL_SECONDS = 2.0


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEEPINFER_")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def pip(*words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    command = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(**env), capture_output=True, text=True, check=False)
    return done, time.monotonic() - started


def probe_text(*words: str) -> list[str]:
    command = [sys.executable, "-m", "deepinfer.probe", *words]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()


@pytest.mark.parametrize("words", [(), ("--no-build-isolation",)], ids=["isolated", "not-isolated"])
def test_pip_refuses_here_with_the_words_of_the_probe(words: tuple[str, ...], tmp_path: Path) -> None:
    expected = probe_text("--for", "build")
    if expected[0].startswith("Eligible"):
        pytest.skip("not run: this host can build, so there is no refusal to look at")
    done, seconds = pip("install", ".", "--target", str(tmp_path), *words)
    assert done.returncode != 0
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    start = said.index(expected[0].strip())
    assert said[start : start + len(expected)] == [line.strip() for line in expected]
    assert said[start + len(expected)] == "[end of output]", "the reason and the next command come last"
    assert "Traceback" not in done.stdout + done.stderr
    assert seconds < REFUSAL_SECONDS
    assert list(tmp_path.iterdir()) == []


def test_pip_download_fetches_for_another_machine(tmp_path: Path) -> None:
    done, _ = pip("download", ".", "--no-deps", "-d", str(tmp_path), DEEPINFER_ACCELERATOR="nvidia")
    if "No matching distribution found for scikit-build-core" in done.stderr:
        pytest.skip("not run: no package index can be reached, and pip wants the build requirements")
    assert done.returncode == 0, done.stdout + done.stderr


def test_metadata_is_static_and_needs_no_target(tmp_path: Path) -> None:
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path), {"deepinfer.target": "nvidia-sm90"})
    assert backend.prepare_metadata_for_build_editable(str(tmp_path)) == name
    fields = Parser().parsestr((tmp_path / name / "METADATA").read_text(encoding="utf-8"))
    assert fields["Name"] == "deepinfer"
    assert fields["Requires-Python"] == "==3.12.*"
    assert fields["License-Expression"] == "Apache-2.0"
    assert "## Two commands" in str(fields.get_payload())


def test_sdist_is_the_same_bytes_twice_and_keeps_the_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = tmp_path / "a" / backend.build_sdist(str(tmp_path / "a"))
    second = tmp_path / "b" / backend.build_sdist(str(tmp_path / "b"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        names = archive.getnames()
        base = names[0].partition("/")[0]
        assert archive.getmember(f"{base}/deepinfer/probes").linkname == "../probes"
        assert f"{base}/matrix/index.json" in names
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
        archive.extractall(tmp_path / "out", filter="data")
    command = [sys.executable, "-m", "deepinfer.probe", "--version"]
    done = subprocess.run(command, cwd=tmp_path / "out" / base, capture_output=True, text=True, check=True)
    assert done.stdout == "deepinfer 0.1.0\n"


def test_the_gate_runs_from_the_source_distribution(tmp_path: Path) -> None:
    archive = tmp_path / backend.build_sdist(str(tmp_path))
    done, _ = pip("install", str(archive), "-C", "deepinfer.target=nvidia-sm90", "--target", str(tmp_path / "site"))
    assert done.returncode != 0
    assert "Draft RFC only" in done.stdout + done.stderr


def test_bootstrap_says_what_it_takes() -> None:
    script = ["bash", "build_support/bootstrap.sh"]
    wrong = subprocess.run([*script, "demmo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "DI001" in wrong.stderr
    shown = subprocess.run([*script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "demo" in shown.stdout
