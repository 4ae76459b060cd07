"""What goes into an artifact, as the build record keeps it: digests, versions, flags, compilers."""

from __future__ import annotations

import hashlib
import os

from build_support.metadata import ROOT, project
from deepinfer.matrix.index import HERE as MATRIX
from deepinfer.probes.artifact.record import SCHEMA, artifact_id
from deepinfer.probes.facts.compiler import Compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from deepinfer.probes.resolve import Target

# Compiled from these; a change in any of them is another artifact.
SOURCES = ("CMakeLists.txt", "csrc", "build_support", "pyproject.toml")
TOOLS = ("scikit-build-core", "nanobind", "cmake", "ninja")
CXX_FLAGS = "-O3 -fno-math-errno -Wl,--exclude-libs,ALL"
CUDA_FLAGS = "-O3 -Xfatbin=-compress-mode=none"  # the architecture of a compressed cubin could not be read back
_KINDS = {"nvidia": "cuda", "ascend": "core", "host": "cpu"}


def kind_of(entry: dict[str, Any]) -> str:
    """``cuda``, ``core`` (no device code of ours exists for that vendor yet) or ``cpu``."""
    return _KINDS[entry["vendor"]]


def record_of(target: Target, machine: str) -> dict[str, Any]:
    """The build record of ``target``, its id included."""
    entry, toolchain = target.entry, target.toolchain
    if entry is None or toolchain.compiler is None:
        raise ValueError("the gate let a target without an entry or a compiler pass")
    kind = kind_of(entry)
    kit = toolchain.cuda or toolchain.cann
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "entry": entry["id"],
        "status": entry["status"],
        "kind": kind,
        "matrix_digest": _sha256_of(os.path.join(MATRIX, "index.json")),
        "source_digest": source_digest(),
        "architectures": sorted(target.architectures) if kind == "cuda" else [],
        "machine": machine,
        "compiler": _name(toolchain.compiler),
        "cuda_host": _name(toolchain.cuda_host) if toolchain.cuda_host else "",
        "toolkit": "%s %s" % (kit.name, kit.version_text) if kit else "",
        "flags": {"cxx": CXX_FLAGS, "cuda": CUDA_FLAGS if kind == "cuda" else ""},
        "versions": versions(),
    }
    record["artifact_id"] = artifact_id(record)
    record["verified_on_device"] = False  # evidence comes from `attest`, never from a build
    return record


def _name(compiler: Compiler) -> str:
    return " ".join([compiler.label, *compiler.words[1:]])


def versions() -> dict[str, str]:
    """Versions of this package and of the build tools; a tool that is no Python package counts as ``system``."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"deepinfer": str(project()["version"])}
    for name in TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "system"
    return found


def source_digest(root: str = ROOT) -> str:
    """``sha256:...`` over the sorted (path, content hash) of everything that is compiled or steers the compiling."""
    lines = []
    for top in SOURCES:
        for path in _files(root, top):
            lines.append("%s %s" % (path, _sha256_of(os.path.join(root, path))))
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode("utf-8")).hexdigest()


def _files(root: str, path: str) -> list[str]:
    full = os.path.join(root, path)
    if os.path.isfile(full):
        return [] if full.endswith(".pyc") else [path]
    if not os.path.isdir(full):
        return []
    found = []
    for name in os.listdir(full):
        if name != "__pycache__":
            found += _files(root, path + "/" + name)
    return found


def _sha256_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
