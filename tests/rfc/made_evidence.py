"""Evidence as attest writes it, made without a device: for the rules that read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepinfer.matrix.compiled import compiled_entries
from deepinfer.matrix.evidence import FOLDER
from deepinfer.matrix.evidence_form import canonical, file_name, sealed
from deepinfer.matrix.gates import lane_of, source_digest
from deepinfer.matrix.load import load


def check(name: str, outcome: str = "pass", note: str = "") -> dict[str, Any]:
    return {"id": name, "outcome": outcome, "measured": "0", "unit": "", "bound": "", "note": note}


def document(root: Path, gate: str = "conformance", entry: str = "nvidia-sm90", **changes: Any) -> dict[str, Any]:
    """Passing evidence for the present sources, with ``changes`` in place and sealed again."""
    compiled = next(item for item in compiled_entries(load(root)) if item["id"] == entry)
    checks = {"probe": ["device.0.entry"], "build": ["architectures"]}.get(
        gate, ["op.dequant.fp4_row", "op.dequant.fp8_block"]
    )
    plain = {
        "schema": 1,
        "gate": gate,
        "entry": entry,
        "lane": lane_of(compiled),
        "outcome": "pass",
        "commit": "0" * 40,
        "dirty": False,
        "source_digest": source_digest(root, gate, compiled),
        "tool": {"name": "deepinfer.attest", "version": "0.1.0"},
        "argv": ["deepinfer.attest", gate],
        "started": "2026-11-30T10:00:00Z",
        "finished": "2026-11-30T10:00:05Z",
        "host": {
            "fingerprint": "ab" * 32,
            "names": ["NVIDIA H200"],
            "pci": ["10de:2335"],
            "arch": ["9.0"],
            "memory_bytes": [150754820096],
            "driver": "580.95.05",
            "toolkit": "cuda 13.0.88",
            "kernel": "6.18.44",
            "machine": "x86_64",
            "container": True,
        },
        "checks": [check(name) for name in checks],
        "artifacts": [],
        "provenance": {"by": "ada", "kind": "contributor"},
    }
    return sealed({**plain, **changes})


def put(root: Path, data: dict[str, Any], name: str = "", text: str = "") -> Path:
    """Write it where its content says, or under ``name``."""
    path = root / FOLDER / (name or file_name(data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or canonical(data), encoding="utf-8")
    return path
