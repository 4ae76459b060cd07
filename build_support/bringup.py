"""Bring-up: kernels of a proposed entry, compiled in the tree for its architecture, never to be installed.

``build/bringup/<entry>/libkernels.so`` is what ``attest`` loads by path to produce evidence. Entries that pip builds
need none, and what nobody proposed gets none.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deepinfer.errors import DeepInferError
from deepinfer.matrix.gates import source_digest
from deepinfer.probes.artifact import device_code
from deepinfer.probes.facts import compiler, cuda
from deepinfer.probes.redact import excerpt
from deepinfer.probes.toolchain import missing_architectures
from deepinfer.probes.view import HostView
from deepinfer.probes.wish import Wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARY, RECORD = "libkernels.so", "record.json"
PROPOSED = ("draft", "accepted")
FLAGS = ["-std=c++20", "-O3", "-I", "csrc", "-Xfatbin=-compress-mode=none", "-Xcompiler=-fPIC"]
SECONDS = 1800


class NotProposed(DeepInferError):
    """Bring-up is for draft and accepted entries alone."""

    code = "DI410"


class NoKernels(DeepInferError):
    """There is nothing that could be compiled for this entry: no kernels for its vendor, or no architecture."""

    code = "DI412"


class NoCompiler(DeepInferError):
    """No CUDA toolkit is here that compiles for the architectures of the entry."""

    code = "DI413"


class CompileFailed(DeepInferError):
    """nvcc ended with an error, or did not end."""

    code = "DI414"


class OtherCode(DeepInferError):
    """The compiled library does not hold exactly the device code that the entry names."""

    code = "DI415"


class NoBringup(DeepInferError):
    """There is no bring-up build of the entry, or it is one of other sources."""

    code = "DI420"


def folder(root: Path, entry: dict[str, Any]) -> Path:
    """Where the build of an entry lies."""
    return root / "build" / "bringup" / str(entry["id"])


def require_proposed(entry: dict[str, Any]) -> None:
    """Raises :class:`NotProposed` or :class:`NoKernels`."""
    if entry["status"] not in PROPOSED:
        built = entry["status"] in ("supported", "deprecated", "reference")
        raise NotProposed(
            "%s is %s: bring-up is for entries that an RFC proposes" % (entry["id"], entry["status"]),
            fix="pip install . builds it" if built else "python -m deepinfer.rfc new --from-probe proposes it",
        )
    if entry["vendor"] != "nvidia":
        raise NoKernels(
            "no kernel of ours exists for vendor %s, so %s has no command yet" % (entry["vendor"], entry["id"]),
            fix="write csrc/kernels/<op>/%s/ first" % entry["vendor"],
        )
    if not entry["architectures"]:
        raise NoKernels(
            "%s names no architecture" % entry["id"],
            fix='add architectures = ["..."] to matrix/entries/%s.toml, as nvcc takes them' % entry["id"],
        )


def toolkit(view: HostView, entry: dict[str, Any]) -> cuda.Toolkit:
    """The named toolkit, or the newest one here that compiles for the entry: a proposal declares none.

    Raises :class:`NoCompiler`.
    """
    named = cuda.explicit(view, Wish())
    first = cuda.on_path(view)
    rest = cuda.elsewhere(view, [first.root] if first else [])
    kits = [named] if named else ([first] if first else []) + [cuda.inspect(view, kit.root, kit.origin) for kit in rest]
    able = [kit for kit in kits if not kit.missing and kit.architectures and not missing_architectures(kit, entry)]
    if not able:
        seen = ", ".join(kit.label for kit in kits) or "no CUDA toolkit"
        raise NoCompiler(
            "nothing here compiles for sm_%s; found: %s" % (", sm_".join(entry["architectures"]), seen),
            fix="install a CUDA toolkit that does, and set CUDA_HOME to it",
        )
    return max(able, key=lambda kit: kit.version)


def build(root: Path, entry: dict[str, Any], view: HostView) -> dict[str, Any]:
    """Compile the kernels of ``entry``; returns the record. The old build stays until the new one is checked."""
    require_proposed(entry)
    kit = toolkit(view, entry)
    host = compiler.cuda_host_explicit(view, Wish())
    sources = sorted(path.relative_to(root).as_posix() for path in root.glob("csrc/kernels/*/cuda/*.cu"))
    target = folder(root, entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(target.parent), prefix=".new-") as work:
        library = Path(work) / LIBRARY
        words = [kit.nvcc, *FLAGS]
        for arch in entry["architectures"]:
            words += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]
        if host is not None:
            words += ["-ccbin", host.words[-1]]
        _compile(words, sources, library, root)
        data = library.read_bytes()
        _check_code(data, entry)
        record = {
            "schema": 1,
            "entry": entry["id"],
            "rfc": entry["rfc"],
            "architectures": sorted(entry["architectures"]),
            "sources": sources,
            "source_digest": source_digest(root, "build", entry),
            "toolkit": "cuda %s" % kit.version_text,
            "flags": " ".join(FLAGS),
            "library": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
        }
        (Path(work) / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        target.mkdir(exist_ok=True)
        for name in (LIBRARY, RECORD):
            os.replace(str(Path(work) / name), str(target / name))
    return record


def _compile(words: list[str], sources: list[str], library: Path, root: Path) -> None:
    """Each source to an object, as many at a time as there are processors, then one library of them."""
    objects = [str(library.with_name("%d.o" % number)) for number in range(len(sources))]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        pairs = zip(sources, objects, strict=True)
        jobs = [workers.submit(_run, [*words, "-c", source, "-o", target], root) for source, target in pairs]
        for job in jobs:
            job.result()
    _run([*words, "-shared", *objects, "-o", str(library)], root)


def _run(words: list[str], root: Path) -> None:
    try:
        done = subprocess.run(words, cwd=str(root), capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileFailed(
            "nvcc: %s" % excerpt(str(error)), fix="run it by hand: %s" % excerpt(" ".join(words), 400)
        ) from None
    if done.returncode != 0:
        raise CompileFailed(
            "nvcc ended with %d: %s" % (done.returncode, excerpt(done.stderr or done.stdout, 600)),
            fix="CUDAHOSTCXX=g++-13 names another host compiler; CUDA_HOME another toolkit",
        )


def _check_code(data: bytes, entry: dict[str, Any]) -> None:
    try:
        found = device_code.read(data)
    except device_code.Malformed as error:
        raise OtherCode("the device code cannot be read back: %s" % error, fix="report it") from None
    if found.ptx or found.cubins != set(entry["architectures"]):
        seen = ", ".join(sorted(found.cubins | found.ptx)) or "none"
        raise OtherCode("nvcc made %s, not %s" % (seen, ", ".join(entry["architectures"])), fix="report it")


def load_record(root: Path, entry: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """(library, record) of a build of the present sources. Raises :class:`NoBringup`."""
    path = folder(root, entry)
    fix = "python -m deepinfer.rfc bringup %s" % entry["rfc"]
    try:
        record: dict[str, Any] = json.loads((path / RECORD).read_text(encoding="utf-8"))
        digest = hashlib.sha256((path / LIBRARY).read_bytes()).hexdigest()
        same = record["library"]["sha256"] == digest
        current = record["source_digest"] == source_digest(root, "build", entry)
    except (OSError, ValueError, KeyError, TypeError):
        raise NoBringup("there is no bring-up build of %s" % entry["id"], fix=fix) from None
    if not same or not current:
        what = "its library was changed" if not same else "the sources have changed since"
        raise NoBringup("the bring-up build of %s is no use: %s" % (entry["id"], what), fix=fix)
    return path / LIBRARY, record
