"""A copy of what the RFC path reads, that a test may break."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from copies import TODAY, copy_tree

from deepinfer.matrix.findings import Finding
from deepinfer.matrix.rfc_check import check


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_tree(tmp_path)


@pytest.fixture
def edit(root: Path) -> Callable[[str, str, str], None]:
    def replace(name: str, old: str, new: str) -> None:
        path = root / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert old in text, "%s does not hold %r" % (name, old)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")

    return replace


@pytest.fixture
def findings(root: Path) -> Callable[[], list[Finding]]:
    return lambda: check(root, TODAY).findings
