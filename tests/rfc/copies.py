"""A copy of what the RFC path reads, and the day on which tests judge it."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

from deepinfer.matrix.gates import COVERS, covered
from deepinfer.matrix.load import ROOT
from deepinfer.matrix.render import render

TODAY = dt.date(2026, 12, 1)


def copy_tree(target: Path) -> Path:
    """Everything that ``check`` and ``render`` look at; evidence of the real tree stays behind."""
    for folder in ("matrix", "rfcs", "docs", "site"):
        skip = shutil.ignore_patterns("__pycache__", "*.py", "*.json.new", "evidence")
        shutil.copytree(ROOT / folder, target / folder, ignore=skip)
    shutil.copy(ROOT / "README.md", target / "README.md")
    for name in {name for lane, its in COVERS.items() for gate in its for name in covered(ROOT, lane, gate)}:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    (target / "matrix/evidence").mkdir()
    render(target)  # without the evidence the engine column may say less
    return target
