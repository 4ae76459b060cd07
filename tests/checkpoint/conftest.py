"""Makes tests/checkpoint importable as plain modules; one tiny checkpoint for all tests, never changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of seed 1."""
    for package in ("torch", "safetensors", "tokenizers"):
        pytest.importorskip(package, reason=f"not run: {package} is not installed")
    from deepinfer.engine.checkpoint.tiny import make

    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    make(folder, seed=1)
    return folder
