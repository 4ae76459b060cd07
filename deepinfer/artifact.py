"""``python -m deepinfer.artifact show|verify [--json]``: what was built, and whether it still is what was built."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from deepinfer.command_line import Arguments
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.matrix.index import HERE as MATRIX
from deepinfer.matrix.index import load_index
from deepinfer.probes.artifact import device_code, fitness, installed
from deepinfer.probes.artifact.record import FILE
from deepinfer.probes.live import LiveView


def main(words: list[str] | None = None) -> int:
    """Exit code 0: as built; 1: something differs; 2: usage."""
    parser = Arguments(prog="python -m deepinfer.artifact", description=__doc__)
    parser.add_argument("command", choices=("show", "verify"), help="show: print the record; verify: check it all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    try:
        options = parser.parse_args(words)
        artifact = installed.find()
    except DeepInferError as error:
        sys.stderr.write("%s\n" % error)
        return 2 if isinstance(error, UsageError) else 1
    if options.command == "show":
        _print_record(artifact, as_json=options.json)
        return 0
    checks = verify(artifact)
    if options.json:
        document = {"schema": 1, "artifact_id": artifact.record["artifact_id"], "checks": checks}
        document["ok"] = all(item["outcome"] != "fail" for item in checks)
        print(json.dumps(document, indent=1))
    else:
        for item in checks:
            print("  %-7s %-13s %s" % (item["outcome"], item["id"], item["found"]))
            if item["fix"]:
                print("          fix: %s" % item["fix"])
    return int(any(item["outcome"] == "fail" for item in checks))


def _print_record(artifact: installed.Installed, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(artifact.record, indent=1, sort_keys=True))
        return
    record = artifact.record
    rows = {
        "artifact": record["artifact_id"],
        "target": "%s (%s)" % (record["entry"], record["status"]),
        "device code": ", ".join("sm_" + arch for arch in record["architectures"]) or "none",
        "machine": record["machine"],
        "compiler": record["compiler"],
        "toolkit": record["toolkit"] or "none",
        "built with": ", ".join("%s %s" % pair for pair in sorted(record["versions"].items())),
        "on a device": "verified" if record["verified_on_device"] else "not verified on a device",
        "module": artifact.module,
    }
    for name, value in rows.items():
        print("%-12s %s" % (name, value))


def verify(artifact: installed.Installed) -> list[dict[str, Any]]:
    """One row per check: ``id``, ``outcome`` (pass, fail, warn), ``found``, ``fix``."""
    rows = [_row("record", "pass", artifact.record["artifact_id"])]
    rows.append(_files(artifact))
    rows.append(_code(artifact))
    rows.append(_matrix(artifact))
    try:
        fitness.require(artifact, LiveView(), load_index())
        rows.append(_row("host", "pass", "fits this host"))
    except DeepInferError as error:
        # a cross-built artifact is fine where it cannot run: said, not failed
        outcome = "fail" if isinstance(error, (fitness.WrongTarget, fitness.WrongMachine)) else "warn"
        rows.append(_row("host", outcome, "%s: %s" % (error.code, error.what), error.fix))
    return rows


def _row(name: str, outcome: str, found: str, fix: str = "") -> dict[str, Any]:
    return {"id": name, "outcome": outcome, "found": found, "fix": fix}


def _files(artifact: installed.Installed) -> dict[str, Any]:
    """Every installed file against RECORD, the native module and the record first."""
    try:
        installed.check_module(artifact)
    except DeepInferError as error:
        return _row("files", "fail", "%s: %s" % (error.code, error.what), error.fix)
    for path, known in sorted(artifact.hashes.items()):
        if not os.path.exists(path):
            return _row("files", "fail", "DI312: %s is gone" % path, artifact.reinstall())
        if known.startswith("sha256=") and installed.digest(path) != known:
            return _row("files", "fail", "DI312: %s was changed after it was installed" % path, artifact.reinstall())
    return _row("files", "pass", "%d files as installed" % len(artifact.hashes))


def _code(artifact: installed.Installed) -> dict[str, Any]:
    """The architectures in the binary are those of the record."""
    try:
        with open(artifact.module, "rb") as file:
            found = device_code.read(file.read())
    except (OSError, device_code.Malformed) as error:
        return _row("device code", "fail", "cannot be read: %s" % error, artifact.reinstall())
    seen = ", ".join("sm_" + arch for arch in sorted(found.cubins)) or "none"
    if found.ptx or found.cubins != set(artifact.record["architectures"]):
        return _row("device code", "fail", "the binary holds %s" % seen, artifact.reinstall())
    return _row("device code", "pass", seen)


def _matrix(artifact: installed.Installed) -> dict[str, Any]:
    """The matrix that judges is the matrix that was built with. In an editable install it may move on."""
    same = installed.hex_digest(os.path.join(MATRIX, "index.json")) == artifact.record["matrix_digest"]
    if same:
        return _row("matrix", "pass", artifact.record["matrix_digest"][:12])
    outcome = "warn" if artifact.editable else "fail"
    return _row("matrix", outcome, "%s was built with another matrix" % FILE, artifact.reinstall())


if __name__ == "__main__":
    sys.exit(main())
