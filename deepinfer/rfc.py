"""``python -m deepinfer.rfc check|new|status|report|bringup``: how a device earns its row; see docs/rfc.md.

Exit codes: 0 done, 1 findings, 2 wrong words or something that stands in the way.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.errors import UsageError
from deepinfer.words import Parser, dump, ends

if TYPE_CHECKING:
    from deepinfer.matrix.load import Tree
    from deepinfer.matrix.proposal import Measured, Proposal
    from deepinfer.matrix.rfc_check import Report
    from deepinfer.probes.facts.device import Device


def parser() -> Parser:
    """The command line."""
    top = Parser(prog="python -m deepinfer.rfc", description="How a device earns its row: see docs/rfc.md.")
    commands = top.add_subparsers(dest="command", metavar="{check,new,status,report,bringup}", parser_class=Parser)
    check = top.command(commands, "check", "every rule on every file; exit code 1 if there is a finding")
    check.add_argument("--base", metavar="REV", help="also hold the tree against this revision")
    new = top.command(commands, "new", "write an RFC and its entry from what the probe measures; blanks say FILL:")
    new.add_argument("--from-probe", action="store_true", help="take the facts from this host, or from --replay FILE")
    new.add_argument("--replay", metavar="FILE", help="a recorded host, as `probe --record FILE` writes it")
    new.add_argument("--number", type=int, metavar="N", help="default: the next free one")
    new.add_argument("--slug", default="", help="words of the file's name")
    new.add_argument("--dry-run", action="store_true", help="print the files and write nothing")
    status = top.command(commands, "status", "gates passed and missing, with the command for each")
    report = top.command(commands, "report", "for reviewers: what changed since a revision")
    report.add_argument("--base", metavar="REV", required=True)
    bringup = top.command(commands, "bringup", "compile the kernels for the RFC's entry; never to be installed")
    for command in (status, bringup):
        command.add_argument("number", type=int, metavar="N", help="number of the RFC")
    bringup.add_argument("--entry", metavar="ID", help="which of its entries, if it has several")
    for command in (check, new, status, report, bringup):
        command.add_argument("--root", metavar="DIR", help="work on the checkout in this folder")
    for command in (check, new, status, report):
        command.add_argument("--today", metavar="DATE", help="judge as on this day, such as 2026-11-30")
    return top


def main(words: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    return ends(_run, words)


def _run(words: list[str]) -> int:
    options = parser().read(words)
    return {"check": _check, "new": _new, "status": _status, "report": _report, "bringup": _bringup}[options.command](
        options
    )


def _today(options: argparse.Namespace) -> dt.date:
    if options.today is None:
        return dt.datetime.now(dt.timezone.utc).date()
    try:
        return dt.date.fromisoformat(options.today)
    except ValueError:
        raise UsageError("--today is %r" % options.today, fix="write it as 2026-11-30") from None


def _root(options: argparse.Namespace) -> Path:
    from deepinfer.matrix.load import ROOT

    return ROOT if options.root is None else Path(options.root)


def _judged(options: argparse.Namespace, base: Tree | None = None, old: list[str] | None = None) -> Report:
    from deepinfer.matrix.rfc_check import check

    return check(_root(options), _today(options), base, old)


# -- check ------------------------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> int:
    if options.base is None:
        report = _judged(options)
    else:
        from deepinfer.matrix.base import at

        with at(_root(options), options.base) as (base, old):
            report = _judged(options, base, old)
    if options.json:
        findings, warnings = ([item._asdict() for item in part] for part in (report.findings, report.warnings))
        document = {"schema": 1, "findings": findings, "warnings": warnings, "capacity": report.capacity}
        dump({**document, "evidence": [item.path for item in report.case.evidence if item.counts]})
        return int(bool(report.findings))
    from deepinfer.matrix.rfc_report import capacity_text

    for finding in report.findings:
        print(finding)
    for warning in report.warnings:
        print("warning: %s" % str(warning))
    for row in report.capacity:
        print("capacity: %s" % capacity_text(row))
    tree = report.case.tree
    judged = "%d entries, %d RFCs, %d files of evidence" % (
        len(tree.of("entry")),
        len(tree.of("rfc")),
        len(report.case.evidence),
    )
    print("%s: %d findings, %d warnings" % (judged, len(report.findings), len(report.warnings)))
    return int(bool(report.findings))


# -- new --------------------------------------------------------------------------------------------------------------


def _new(options: argparse.Namespace) -> int:
    from deepinfer.matrix.load import load
    from deepinfer.matrix.proposal import propose

    if not options.from_probe:
        raise UsageError("an RFC starts from facts", fix="add --from-probe (on the device, or with --replay FILE)")
    root = _root(options)
    proposal = propose(load(root), _measured(options.replay), _today(options), options.number, options.slug)
    if not options.dry_run:
        for name, text in proposal.files.items():
            draft = root / (name + ".new")
            draft.write_text(text, encoding="utf-8")
            os.replace(str(draft), str(root / name))
    if options.json:
        document = {"schema": 1, "number": proposal.number, "entry": proposal.entry, "turned": proposal.turned}
        dump({**document, "written": not options.dry_run, "files": proposal.files})
    elif options.dry_run:
        for name, text in proposal.files.items():
            print("--- %s" % name)
            sys.stdout.write(text)
    else:
        _say_next(proposal)
    return 0


def _say_next(proposal: Proposal) -> None:
    for name, text in proposal.files.items():
        how = "turned into a draft" if proposal.turned and name.startswith("matrix/") else "wrote"
        print("%s %s: %d blanks" % (how, name, text.count("FILL:")))
    print("next: fill the blanks, then: python -m deepinfer.rfc check")
    print("then: python -m deepinfer.matrix render; python -m deepinfer.rfc status %d" % proposal.number)


def _measured(replay: str | None) -> Measured:
    """The devices of one kind on this host, or on the recorded one: the kind of which there are most."""
    from deepinfer.engine.attest.host import facts_of
    from deepinfer.matrix.index import load_index
    from deepinfer.matrix.proposal import Measured, NothingToPropose
    from deepinfer.probes import match
    from deepinfer.probes.live import LiveView
    from deepinfer.probes.recorded import load_record
    from deepinfer.probes.redact import masked

    facts = facts_of(load_record(replay) if replay else LiveView())
    index = load_index(check=False)
    kinds: dict[tuple[str, str], list[Device]] = {}
    for device in facts.devices:
        if device.arch:
            kinds.setdefault((device.vendor, device.arch), []).append(device)
    if not kinds:
        seen = "%d devices, none of which its driver names" % len(facts.devices) if facts.devices else "no accelerator"
        fix = "run it where the driver answers: python3 -m deepinfer.probe --all says what is read"
        raise NothingToPropose("the host shows %s" % seen, fix=fix)
    (vendor, arch), own = max(kinds.items(), key=lambda item: len(item[1]))
    entry = match.find(own[0], index).entry
    sizes = {device.memory_bytes for device in own if not device.partitioned}
    return Measured(
        vendor,
        arch,
        sorted({masked(match.label(device, None)) for device in own}),
        sorted({device.pci_id for device in own if device.pci_id}),
        sizes.pop() if len(sizes) == 1 else None,
        len(own),
        facts.nvidia.driver_version if vendor == "nvidia" else "",
        entry["id"] if entry else None,
    )


# -- status, report ---------------------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    from deepinfer.matrix.rfc_status import status_of, status_text

    data = status_of(_judged(options), options.number)
    dump(data) if options.json else sys.stdout.write(status_text(data))
    return 0


def _report(options: argparse.Namespace) -> int:
    from deepinfer.matrix.base import at
    from deepinfer.matrix.rfc_report import report_of, report_text

    with at(_root(options), options.base) as (base, old):
        data = report_of(_judged(options, base, old), base, options.base)
    dump(data) if options.json else sys.stdout.write(report_text(data))
    return int(bool(data["findings"]))


# -- bringup ----------------------------------------------------------------------------------------------------------


def _bringup(options: argparse.Namespace) -> int:
    from deepinfer.matrix.load import NoTree

    root = _root(options)
    if not (root / "build_support" / "bringup.py").is_file():
        raise NoTree("kernels are compiled in a checkout, and there is none at %s" % root, fix="clone the repository")
    sys.path.insert(0, str(root))  # build_support is never installed
    from build_support import bringup
    from deepinfer.engine.attest import host
    from deepinfer.matrix.index import load_index
    from deepinfer.probes.live import LiveView

    index = load_index(str(root / "matrix" / "index.json"))
    entry = _entry_of(index, options.number, options.entry)
    bringup.require_proposed(entry)
    view = LiveView()
    try:
        host.find(view, index, entry)
        record = bringup.build(root, entry, view)
    finally:
        view.close()
    library = bringup.folder(root, entry) / bringup.LIBRARY
    if options.json:
        dump({**record, "path": str(library)})
        return 0
    made = ", ".join("sm_" + arch for arch in record["architectures"])
    print("%s: %d bytes, %s, by %s" % (library, record["library"]["bytes"], made, record["toolkit"]))
    print("next: python -m deepinfer.attest probe build conformance --entry %s" % entry["id"])
    return 0


def _entry_of(index: dict[str, Any], number: int, wanted: str | None) -> dict[str, Any]:
    names = index["rfcs"].get(str(number), {}).get("entries", [])
    if str(number) not in index["rfcs"]:
        known = ", ".join(sorted(index["rfcs"], key=int))
        raise UsageError("there is no RFC %d" % number, fix="the RFCs are: %s" % known)
    own = [entry for entry in index["entries"] if entry["id"] in names and wanted in (None, entry["id"])]
    if len(own) != 1:
        what = "RFC %d lists %s" % (number, ", ".join(names) or "no entry")
        raise UsageError(what, fix="name one with --entry" if names else "choose an RFC that proposes a device")
    return dict(own[0])


if __name__ == "__main__":
    if sys.version_info < (3, 10):
        sys.exit("the RFC tools need Python 3.10 or newer\n  fix: python3.12 -m deepinfer.rfc")
    sys.exit(main())
