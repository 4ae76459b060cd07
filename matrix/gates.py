"""The gates of an entry: what each covers, and which are passed by the evidence that is there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.matrix.evidence import Evidence
from deepinfer.matrix.vocabulary import BUILT, PROPOSED

NO_COMMAND = "no command yet"
# gate -> what it promises, and the command that closes it (%(entry)s, %(rfc)s)
GATES: dict[str, tuple[str, str]] = {
    "facts": ("no finding is open on the entry or its RFC", "python -m deepinfer.rfc check"),
    "capacity": ("the weights fit a configuration in bytes, and no blocker of kind capacity is open", ""),
    "probe": ("a host matches the entry, and its facts equal it", "python -m deepinfer.attest probe --entry %(entry)s"),
    "build": ("its kernels compile to exactly its architectures", "python -m deepinfer.attest build --entry %(entry)s"),
    "conformance": (
        "every op equals its reference on the device",
        "python -m deepinfer.attest conformance --entry %(entry)s",
    ),
    "smoke": (
        "the engine generates the CPU target's greedy tokens",
        "python -m deepinfer.attest smoke --entry %(entry)s",
    ),
    "bench": (
        "kernels reach their floor of the host's own measured bound",
        "python -m deepinfer.attest bench --entry %(entry)s",
    ),
}
# lane -> gate -> files whose content evidence is bound to. bringup: proposed entries; wheel: those that pip builds.
KERNELS = ("csrc/kernels/*/op.h", "csrc/kernels/hopper/*", "csrc/kernels/*/cuda/*")
SUITE = ("engine/ops/*.py",)  # contracts, references and cases: the references run on the device too
ATTEST = ("engine/attest/device_ops.py", "engine/attest/run.py", "engine/attest/sanitize.py")
BENCH = ("bench/gpu_*.py", "engine/attest/bench.py", "engine/attest/device_ops.py", "engine/native_layer/*.py")
MODEL = ("engine/*.py", "engine/model/*.py", "engine/ops/*.py", "engine/checkpoint/*.py")
FACTS = ("probes/facts/*.py", "probes/match.py", "probes/nvml_reader.py", "engine/attest/host.py")
COVERS: dict[str, dict[str, tuple[str, ...]]] = {
    "bringup": {
        "probe": FACTS,
        "build": (*KERNELS, "build_support/bringup.py"),
        "conformance": (*KERNELS, *SUITE, *ATTEST, "build_support/bringup.py"),
        "smoke": (*MODEL, "engine/attest/smoke.py"),
        "bench": (*KERNELS, *SUITE, *BENCH, "build_support/bringup.py"),
    },
    "wheel": {
        "probe": FACTS,
        "build": ("CMakeLists.txt", "pyproject.toml", "csrc/**/*", "build_support/*.py"),
        "conformance": ("CMakeLists.txt", "pyproject.toml", "csrc/**/*", "build_support/*.py", *SUITE, *ATTEST),
        "smoke": (*MODEL, "engine/attest/smoke.py", "csrc/**/*"),
        "bench": (*KERNELS, *SUITE, *BENCH),
    },
}
# What CI itself establishes of the entries that pip builds: tests/packaging builds the NVIDIA wheel and reads its
# device code back; for Ascend the build makes the core alone, as there are no kernels yet.
_BY_CI = {"nvidia": "compiles", "ascend": "core only", "host": "compiles"}


class Gate(NamedTuple):
    """Where a gate of an entry stands: ``passed``, ``failed``, ``stale`` (passed by older sources) or ``missing``."""

    name: str
    state: str
    date: str
    detail: str
    command: str


def lane_of(entry: dict[str, Any]) -> str:
    """How the entry's code is built: by ``rfc bringup`` or into the wheel."""
    return "bringup" if entry["status"] in PROPOSED else "wheel"


def covered(root: Path, lane: str, gate: str) -> list[str]:
    """Sorted paths of the files that the gate covers."""
    names = set()
    for pattern in COVERS[lane].get(gate, ()):
        for path in root.glob(pattern):
            if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
                names.add(path.relative_to(root).as_posix())
    return sorted(names)


def source_digest(root: Path, gate: str, entry: dict[str, Any]) -> str:
    """Digest of what evidence of ``gate`` for ``entry`` (as compiled) is bound to; needs no git."""
    lane = lane_of(entry)
    lines = ["%s %s" % (name, _sha256(root / name)) for name in covered(root, lane, gate)]
    facts = {
        "id": entry["id"],
        "gate": gate,
        "lane": lane,
        "match": entry["match"],
        "architectures": entry["architectures"],
        "machines": [[c["devices"], c["count"], c["memory_bytes"]] for c in entry["configurations"]],
    }
    text = "\n".join([json.dumps(facts, sort_keys=True), *lines])
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_evidence(root: Path, entry: dict[str, Any], gate: str, evidence: list[Evidence]) -> Gate:
    """The state of a gate that evidence closes: what the newest run for the present sources says."""
    about = {"entry": entry["id"], "rfc": entry["rfc"]}
    nothing = lane_of(entry) == "bringup" and entry["vendor"] != "nvidia" and gate != "probe"
    command = NO_COMMAND if nothing else GATES[gate][1] % about
    own = [e for e in evidence if e.counts and e.data["gate"] == gate and e.data["entry"] == entry["id"]]
    own.sort(key=lambda item: item.data["finished"])
    if not own:
        return Gate(gate, "missing", "", "no evidence", command)
    digest = source_digest(root, gate, entry)
    fresh = [item for item in own if item.data["source_digest"] == digest and item.data["lane"] == lane_of(entry)]
    newest = (fresh or own)[-1].data
    day, who = newest["finished"][:10], "%(by)s (%(kind)s)" % newest["provenance"]
    where = ", ".join(sorted(set(newest["host"]["names"]))) or newest["host"]["machine"]
    detail = "%d x %s, by %s" % (max(1, len(newest["host"]["names"])), where, who)
    if newest["outcome"] != "pass":
        bad = [check["id"] for check in newest["checks"] if check["outcome"] == "fail"]
        return Gate(gate, "failed", day, "%s: %s" % (detail, ", ".join(bad) or newest["outcome"]), command)
    if not fresh:
        return Gate(gate, "stale", day, detail + "; its sources have changed since", command)
    return Gate(gate, "passed", day, detail, command)


def headroom(item: dict[str, Any], payload: int) -> int | None:
    """Bytes that a configuration leaves beside the weights; None where it states no memory."""
    return None if item["memory_bytes"] is None else item["count"] * item["memory_bytes"] - payload


def of_capacity(entry: dict[str, Any], payload: int, blockers: list[dict[str, Any]]) -> Gate:
    """The capacity gate: bytes of the largest configuration, and nobody objects."""
    rooms = [room for item in entry["configurations"] if (room := headroom(item, payload)) is not None]
    if not rooms:
        return Gate("capacity", "missing", "", "no configuration states its memory in bytes", "")
    if max(rooms) < 0:
        return Gate("capacity", "failed", "", "%d bytes short of the weights" % -max(rooms), "")
    open_ids = [item["id"] for item in blockers if item["kind"] == "capacity"]
    left = "%d bytes beside the weights" % max(rooms)
    if open_ids:
        return Gate("capacity", "missing", "", "%s; blocker open: %s" % (left, ", ".join(open_ids)), "")
    return Gate("capacity", "passed", "", left, "")


def of_entry(
    root: Path,
    entry: dict[str, Any],
    payload: int,
    blockers: list[dict[str, Any]],
    evidence: list[Evidence],
    clean: bool,
) -> list[Gate]:
    """Every gate of an entry, in order. ``clean``: no finding is open on it or on its RFC."""
    facts = Gate("facts", "passed" if clean else "failed", "", GATES["facts"][0] if clean else "findings", "")
    found = [facts._replace(command=GATES["facts"][1]), of_capacity(entry, payload, blockers)]
    return found + [of_evidence(root, entry, gate, evidence) for gate in GATES if gate not in ("facts", "capacity")]


def engine_of(root: Path, entry: dict[str, Any], evidence: list[Evidence]) -> str:
    """What our engine does on the device: ``none``, ``core only``, ``compiles`` or ``runs (N ops)``. Never more than
    evidence for the present sources shows; an op is a folder of csrc/kernels, and counts if all its parts passed."""
    if of_evidence(root, entry, "conformance", evidence).state == "passed":
        ops = passed_ops(root, entry, evidence)
        if ops:
            return "runs (%d op%s)" % (len(ops), "" if len(ops) == 1 else "s")
    if entry["status"] in BUILT:
        return _BY_CI[entry["vendor"]]
    return "compiles" if of_evidence(root, entry, "build", evidence).state == "passed" else "none"


def passed_ops(root: Path, entry: dict[str, Any], evidence: list[Evidence]) -> list[str]:
    """Ops whose every part passed in the newest conformance run for the present sources."""
    digest = source_digest(root, "conformance", entry)
    own = [e.data for e in evidence if e.counts and e.data["entry"] == entry["id"] and e.data["gate"] == "conformance"]
    own = [data for data in own if data["source_digest"] == digest]
    if not own:
        return []
    checks = max(own, key=lambda data: data["finished"])["checks"]
    parts = [(check["id"].split(".")[1], check["outcome"]) for check in checks if check["id"].startswith("op.")]
    return sorted({name for name, _ in parts} - {name for name, outcome in parts if outcome != "pass"})
