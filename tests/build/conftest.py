"""Hosts for the build tests: the recorded ones, put in the place of the live view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_support import gate
from deepinfer.probes.recorded import RecordedView

HOSTS = Path(__file__).resolve().parents[1] / "hosts"


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``on_host("b200x8_baremetal", CXX="g++-12")``: the gate sees that host, with these variables added."""

    def use(name: str, **env: str) -> None:
        record: dict[str, Any] = json.loads((HOSTS / f"{name}.json").read_text(encoding="utf-8"))
        record["env"] = {**record.get("env", {}), **env}
        monkeypatch.setattr(gate, "LiveView", lambda: RecordedView(record))

    return use
