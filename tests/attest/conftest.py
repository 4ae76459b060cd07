"""A small git repository with what attest covers, and hosts to run it on."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clones import PLANTED, git

from deepinfer.matrix.load import ROOT
from deepinfer.matrix.render import render
from deepinfer.probes.recorded import RecordedView


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone's worth of files, committed, without evidence; of the kernels the smallest alone, for time."""
    target = tmp_path / "clone"
    skip = shutil.ignore_patterns("__pycache__", "evidence", "_native*")
    for name in ("matrix", "probes", "engine", "build_support", "rfcs", "docs", "csrc", "site"):
        shutil.copytree(ROOT / name, target / name, ignore=skip)
    for folder in (target / "csrc/kernels").iterdir():
        if folder.name != "dequant":
            shutil.rmtree(folder)
    (target / "bench").mkdir()
    for name in ("README.md", "pyproject.toml", "CMakeLists.txt", ".gitignore"):
        shutil.copy(ROOT / name, target / name)
    (target / "matrix/evidence").mkdir()
    (target / "matrix/evidence/.gitkeep").touch()
    render(target)
    git(target, "init", "-q")
    git(target, "add", "-A")
    git(target, "commit", "-qm", "all")
    return target


@pytest.fixture
def host() -> Callable[..., RecordedView]:
    """``host("h20_3e_x4")``: the recorded host, with identifiers planted in it."""

    def view(name: str, **changes: Any) -> RecordedView:
        record = json.loads((ROOT / "tests/hosts" / (name + ".json")).read_text(encoding="utf-8"))
        text = json.dumps(record).replace("GPU-00000000-0000-0000-0000-000000000001", PLANTED[2])
        record = json.loads(text)
        record["files"]["/etc/machine-id"] = PLANTED[3] + "\n"
        record["files"]["/proc/sys/kernel/hostname"] = PLANTED[0] + "\n"
        record["files"]["/proc/sys/kernel/osrelease"] = "6.8.0-45-generic-%s\n" % PLANTED[0]
        record["env"] = {**record.get("env", {}), "HOME": PLANTED[4], "USER": PLANTED[1]}
        record.update(changes)
        return RecordedView(record)

    return view
