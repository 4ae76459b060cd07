"""Build records for tests: well-formed, with an id that belongs to them."""

from __future__ import annotations

from typing import Any

from deepinfer.probes.artifact.installed import Installed
from deepinfer.probes.artifact.record import artifact_id


def record(entry: str = "nvidia-sm100", machine: str = "x86_64", **changes: Any) -> dict[str, Any]:
    cuda = entry.startswith("nvidia")
    made: dict[str, Any] = {
        "schema": 1,
        "entry": entry,
        "status": "reference" if entry == "host-cpu" else "supported",
        "kind": "cuda" if cuda else "cpu" if entry == "host-cpu" else "core",
        "matrix_digest": "0" * 64,
        "source_digest": "sha256:" + "0" * 64,
        "architectures": ["100a"] if cuda else [],
        "machine": machine,
        "compiler": "GCC 13.3.0",
        "cuda_host": "GCC 13.3.0" if cuda else "",
        "toolkit": "cuda 13.0" if cuda else "",
        "flags": {"cxx": "-O3", "cuda": ""},
        "versions": {"deepinfer": "0.1.0"},
        "verified_on_device": False,
    }
    made.update(changes)
    made["artifact_id"] = artifact_id(made)
    return made


def installed(entry: str = "nvidia-sm100", machine: str = "x86_64", **more: Any) -> Installed:
    artifact = Installed("/site/deepinfer/_native.abi3.so", record(entry, machine))
    artifact.version = "0.1.0"
    for name, value in more.items():
        setattr(artifact, name, value)
    return artifact
