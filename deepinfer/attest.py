"""``python -m deepinfer.attest GATE... [--entry ID]``: runs gates on this machine and writes their evidence.

Gates: probe, build, conformance, smoke, bench. Evidence is written whatever comes of the run: failures are kept. Exit
codes: 0 every gate passed, 1 one failed (its evidence is written), 2 wrong words or something that stands in the way.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from deepinfer.errors import DeepInferError, UsageError, nearest
from deepinfer.words import Parser, dump, ends

if TYPE_CHECKING:
    from deepinfer.engine.attest.document import Run
    from deepinfer.engine.attest.host import Seen
    from deepinfer.probes.view import HostView

GATES = ("probe", "build", "conformance", "smoke", "bench")
KINDS = ("project-runner", "maintainer", "contributor")


def parser() -> Parser:
    """The command line."""
    top = Parser(prog="python -m deepinfer.attest", description="Run gates here, and write their evidence.")
    top.add_argument("gates", nargs="*", metavar="GATE", help=", ".join(GATES))
    top.add_argument("--entry", metavar="ID", help="entry that the evidence is for (default: that of this host)")
    top.add_argument("--by", default="unnamed", metavar="HANDLE", help="who runs it, as it shall be shown")
    top.add_argument("--kind", default="contributor", metavar="KIND", help="one of: %s" % ", ".join(KINDS))
    top.add_argument("--sign", metavar="KEY", help="private key for a signature beside the evidence (ssh-keygen -Y)")
    top.add_argument("--json", action="store_true", help="print the evidence as one JSON list")
    top.add_argument("--root", metavar="DIR", help="work on the checkout in this folder")
    return top


def read(words: list[str]) -> argparse.Namespace:
    """Options of ``words``. Raises :class:`UsageError` with the nearest right word."""
    options, rest = parser().parse_known_args(words)
    if rest:
        flags = ["--entry", "--by", "--kind", "--sign", "--json", "--root", "--help"]
        what = "%r is not understood%s" % (rest[0], nearest(rest[0], flags))
        raise UsageError(what, fix="python -m deepinfer.attest --help")
    odd = [gate for gate in options.gates if gate not in GATES]
    if odd or not options.gates:
        what = "no gate is called %r%s" % (odd[0], nearest(odd[0], list(GATES))) if odd else "a gate is missing"
        raise UsageError(what, fix="name some of: %s" % ", ".join(GATES))
    if options.kind not in KINDS:
        what = "--kind is %r%s" % (options.kind, nearest(options.kind, list(KINDS)))
        raise UsageError(what, fix="use one of: %s" % ", ".join(KINDS))
    if not re.fullmatch(r"@?[A-Za-z0-9][A-Za-z0-9-]*", options.by):
        raise UsageError("--by is %r" % options.by, fix="give a public handle: letters, digits and dashes")
    return options


def main(words: list[str] | None = None) -> int:
    """Runs the gates; returns the exit code."""
    return ends(_run, words)


def _run(words: list[str]) -> int:
    from deepinfer.matrix.load import ROOT, NoTree
    from deepinfer.probes.live import LiveView

    options = read(words)
    root = ROOT if options.root is None else Path(options.root)
    if not (root / "build_support" / "bringup.py").is_file():
        raise NoTree("evidence is for a checkout, and there is none at %s" % root, fix="clone the repository")
    sys.path.insert(0, str(root))  # build_support is never installed
    view = LiveView()
    try:
        documents = attest(root, options, view, argv=["deepinfer.attest", *words])
    finally:
        view.close()
    if options.json:
        dump(documents)
    return int(any(document["outcome"] != "pass" for document in documents))


def attest(
    root: Path, options: argparse.Namespace, view: HostView, argv: list[str], runner: Callable[..., Any] | None = None
) -> list[dict[str, Any]]:
    """Run each gate of ``options`` on the host behind ``view``. ``runner`` stands in for the suite on a device."""
    from deepinfer.engine.attest import document, host
    from deepinfer.matrix.index import load_index
    from deepinfer.probes.wish import entry_by_id

    index = load_index(str(root / "matrix" / "index.json"))
    entry = entry_by_id(options.entry or _entry_here(view, index), index)
    if entry["status"] == "reference" and "probe" in options.gates:
        raise UsageError("%s is never detected, so there is nothing to probe" % entry["id"], fix="leave probe out")
    own = sorted({"smoke", "bench"} & set(options.gates)) if entry["status"] == "reference" else []
    if own:
        raise UsageError("%s is what the gate %s compares with" % (entry["id"], own[0]), fix="leave %s out" % own[0])
    seen = host.find(view, index, entry)
    written = []
    for gate in GATES:
        if gate not in options.gates:
            continue
        run = document.Run(root, gate, entry, argv, options.by, options.kind)
        toolkit = ""
        try:
            toolkit = _gate(gate, run, seen, index, runner)
        except DeepInferError as error:
            run.error = error.code
            run.check("ran", False, note="%s: %s" % (error.code, error.what))
            sys.stderr.write("%s\n" % error)
        sealed = run.document(host.block(seen, toolkit))
        path = document.write(root, sealed)
        if options.sign:
            document.sign(path, options.sign)
        written.append(sealed)
        if not options.json:
            _print(sealed, path.relative_to(root))
    if any(item["dirty"] for item in written):
        sys.stderr.write("warning: the tree has changes that are not committed, so this evidence does not count\n")
    return written


def _entry_here(view: HostView, index: dict[str, Any]) -> str:
    from deepinfer.engine.attest.host import facts_of
    from deepinfer.probes import match

    found = {entry["id"] for d in facts_of(view).devices if d.visible and (entry := match.find(d, index).entry)}
    if len(found) != 1:
        what = "this host shows devices of %s" % (" and ".join(sorted(found)) or "no entry")
        raise UsageError(what, fix="name the entry with --entry; host-cpu needs no device")
    return str(found.pop())


def _gate(gate: str, run: Run, seen: Seen, index: dict[str, Any], runner: Callable[..., Any] | None) -> str:
    """Fill in the checks of one gate; returns the toolkit that was used."""
    from deepinfer.engine.attest import run as gates
    from deepinfer.matrix.gates import lane_of

    if gate == "probe":
        gates.probe(run, seen, index)
        return ""
    if lane_of(run.entry) == "bringup":
        return _bringup(gate, run, seen, runner)
    return _wheel(gate, run, runner)


def _bringup(gate: str, run: Run, seen: Seen, runner: Callable[..., Any] | None) -> str:
    from build_support import bringup
    from deepinfer.engine.attest import run as gates

    bringup.require_proposed(run.entry)
    if gate == "build":
        record = bringup.build(run.root, run.entry, seen.view)
        library = bringup.folder(run.root, run.entry) / bringup.LIBRARY
        gates.build(
            run, library, run.entry["architectures"], "%d sources, %s" % (len(record["sources"]), record["flags"])
        )
        return str(record["toolkit"])
    library, record = bringup.load_record(run.root, run.entry)
    run.artifacts.append({"name": bringup.LIBRARY, **record["library"]})
    if gate == "conformance":
        seed = gates.conformance(run, runner or _on_device(str(library)))
        if runner is None:
            from deepinfer.engine.attest.sanitize import sanitize

            sanitize(run, str(library), seed)
    else:
        _speaks(gate, run, str(library))
    return str(record["toolkit"])


def _speaks(gate: str, run: Run, library: str) -> None:
    """Gates ``smoke`` and ``bench`` on the device."""
    from deepinfer.engine.attest.run import cuda_ready

    device = cuda_ready()
    if gate == "smoke":
        from deepinfer.engine.attest.smoke import smoke

        smoke(run, device)
        return
    from deepinfer.engine.attest.bench import bench

    bench(run, library)


def _on_device(library: str) -> Callable[[int], Any]:
    """The suite on the kernels of ``library``."""
    from deepinfer.engine.attest.run import cuda_ready

    device = cuda_ready()
    from deepinfer.engine.attest.device_ops import DeviceOps

    return lambda seed: _suite(DeviceOps(library), device, seed)


def _suite(kernels: Any, device: str, seed: int) -> Any:
    """Native versions and references on ``device``."""
    from itertools import chain

    from deepinfer.engine.ops import conformance

    return chain(conformance.run(kernels, "cuda", device, seed), conformance.references(device, seed))


def _wheel(gate: str, run: Run, runner: Callable[..., Any] | None) -> str:
    """The installed artifact: it must be of this entry and of the present sources."""
    from build_support.inputs import source_digest
    from deepinfer.engine.attest import run as gates
    from deepinfer.probes.artifact import installed

    artifact = installed.find()
    installed.check_module(artifact)
    record = artifact.record
    run.check("artifact.entry", record["entry"] == run.entry["id"], record["entry"], bound=run.entry["id"])
    same = record["source_digest"] == source_digest(str(run.root))
    run.check(
        "artifact.sources", same, note="" if same else "it was built from other sources: %s" % artifact.reinstall()
    )
    if gate == "build":
        gates.build(
            run,
            Path(artifact.module),
            record["architectures"],
            "artifact %s" % record["artifact_id"].rpartition(":")[2][:12],
        )
    elif gate in ("smoke", "bench"):
        _speaks(gate, run, artifact.module)
    elif same or runner is not None:
        gates.conformance(run, runner or _native(run.entry))
    return str(record["toolkit"])


def _native(entry: dict[str, Any]) -> Callable[[int], Any]:
    from deepinfer.engine import native

    module = native.load()
    from deepinfer.engine.ops import conformance

    if entry["status"] == "reference":
        return lambda seed: conformance.run(module, "cpu", "cpu", seed)
    from deepinfer.engine.attest.run import cuda_ready

    device = cuda_ready()
    from deepinfer.engine.attest.device_ops import DeviceOps

    kernels = DeviceOps(str(module.__file__))  # the artifact holds them under the same C names
    return lambda seed: _suite(kernels, device, seed)


def _print(document: dict[str, Any], path: Path) -> None:
    print("%-11s %-5s %s" % (document["gate"], document["outcome"], path))
    for check in document["checks"]:
        note = "  (%s)" % check["note"] if check["note"] else ""
        print("  %-4s %s: %s%s" % (check["outcome"], check["id"], check["measured"], note))


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.exit("attestation needs Python 3.10 or newer\n  fix: python3.12 -m deepinfer.attest")
    sys.exit(main())
