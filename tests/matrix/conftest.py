"""A copy of the matrix that a test may break."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.matrix.findings import Finding
from deepinfer.matrix.gates import COVERS, covered
from deepinfer.matrix.load import ROOT, load
from deepinfer.matrix.rules import check

Edit = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("matrix", "rfcs", "docs", "site"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    # evidence is bound to these: without them it would be stale, and the copy not up to date
    for name in {name for lane, its in COVERS.items() for gate in its for name in covered(ROOT, lane, gate)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def edit(root: Path) -> Edit:
    def replace(name: str, old: str, new: str) -> None:
        path = root / name
        text = path.read_text(encoding="utf-8")
        assert old in text, "%s does not hold %r" % (name, old)
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return replace


@pytest.fixture
def findings(root: Path) -> Callable[[], list[Finding]]:
    return lambda: check(load(root))
