"""``rfc check``: every rule on every file. M.. are the matrix's own rules; R.. and W.. are those of the RFC path."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.matrix import gates, rfc_rules, signatures, state_rules
from deepinfer.matrix.compiled import compiled_entries
from deepinfer.matrix.evidence import read_all
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.load import Tree, load
from deepinfer.matrix.rfc_case import RfcCase
from deepinfer.matrix.rules import check as check_matrix

Rule = Callable[[RfcCase], Iterator[Finding]]
# Rules without a function are found where evidence is read, or below.
RULES: dict[str, tuple[str, Rule | None]] = {
    "R1": ("No blank marked `FILL:` is left.", rfc_rules.blanks),
    "R2": ("An RFC of a device lists entries and has its sections, each with text.", rfc_rules.shape),
    "R3": (
        "The entries of an RFC have one status, the last of its history; without an RFC it is upstream's.",
        rfc_rules.one_status,
    ),
    "R4": ("A history begins as a draft and moves one step at a time, forward in time.", rfc_rules.steps),
    "R5": ("Since `--base`: one step at most, histories only added to, no entry lost.", state_rules.against_base),
    "R6": ("Each step that needs it has an approval, and each approval an RFC.", rfc_rules.approved),
    "R7": ("Nobody approves what they wrote or maintain.", rfc_rules.recused),
    "R8": ("A configuration holds the weights in bytes, or a blocker of kind capacity says no.", state_rules.capacity),
    "R9": (
        "Figures of 7 digits or more in an RFC follow from the matrix, sizes such as GB from a source.",
        rfc_rules.figures,
    ),
    "R10": ("Upstream is named by pull request or commit.", rfc_rules.pinned),
    "R11": ("What is proposed names what is missing; what is supported misses nothing.", rfc_rules.blockers),
    "R12": ("What pip builds for an accelerator passed every gate, or has a waiver of 90 days.", state_rules.passed),
    "R13": ("Evidence is JSON in canonical form, with the declared keys and no others.", None),
    "R14": ("Evidence has the digest of its content.", None),
    "R15": ("Evidence is for a known gate and entry, and lies under the name that its content gives.", None),
    "R16": ("Evidence comes from a clean tree.", None),
    "R17": ("Evidence ends after it began, and not in the future.", None),
    "R18": ("The outcome of evidence is what its checks say.", None),
    "R19": ("Evidence names no host and no person.", None),
    "R20": ("A signature beside evidence is one of rfcs/allowed_signers.", signatures.signed),
    "R21": ("Evidence is kept, failures too, and signatures sign something.", state_rules.kept),
    "R22": ("What is generated is up to date.", None),
}
WARNINGS = {
    "W1": "A waiver is past its day.",
    "W2": "Nobody has read upstream's pull request for half a year.",
    "W3": "Evidence failed, or its sources have changed since.",
}


class Report(NamedTuple):
    """``findings`` fail the check, ``warnings`` never do; ``capacity`` is one line per configuration with memory."""

    findings: list[Finding]
    warnings: list[Finding]
    capacity: list[dict[str, Any]]
    case: RfcCase


def check(root: Path | str | None, today: dt.date, base: Tree | None = None, old: list[str] | None = None) -> Report:
    """Everything wrong with the tree below ``root``, judged on the day ``today``."""
    return check_tree(load(root), today, base, old)


def check_tree(tree: Tree, today: dt.date, base: Tree | None = None, old: list[str] | None = None) -> Report:
    """The same for a tree that was loaded."""
    entries = [str(document.data.get("id")) for document in tree.of("entry")]
    found = check_matrix(tree)
    case = RfcCase(tree, read_all(tree.root, entries), today, [] if found else compiled_entries(tree), base, old)
    for item in case.evidence:
        found += [*item.findings, *_times(item.path, item.data, today)]
    for _, rule in RULES.values():
        if rule is not None:
            found.extend(rule(case))
    if not found:
        found = _stale(tree)
    return Report(sorted(found), sorted(state_rules.warnings(case)), capacity_lines(case), case)


def _times(path: str, data: dict[str, Any], today: dt.date) -> Iterator[Finding]:
    if not data:
        return
    last = (today + dt.timedelta(days=1)).isoformat()  # the day may have begun elsewhere
    if data["finished"] < data["started"]:
        yield Finding(path, 1, "R17", "it ended before it began", "run the attest command again")
    elif data["finished"][:10] > last:
        yield Finding(
            path, 1, "R17", "it ended in the future (%s)" % data["finished"], "set the clock, and run it again"
        )


def _stale(tree: Tree) -> list[Finding]:
    """Only where nothing else was found: what breaks a rule cannot be rendered."""
    from deepinfer.matrix.render import render

    fix = "python -m deepinfer.matrix render"
    return [Finding(name, 1, "R22", "it is out of date", fix) for name in render(tree.root, write=False)]


def capacity_lines(case: RfcCase) -> list[dict[str, Any]]:
    """Per configuration with memory: bytes there, bytes of the weights, and what is left."""
    rows: list[dict[str, Any]] = []
    for entry in case.compiled:
        payload = case.tree.of("model")[0].data["payload_bytes"]
        for item in entry["configurations"]:
            room = gates.headroom(item, payload)
            if room is not None:
                total = item["count"] * item["memory_bytes"]
                row = {"entry": entry["id"], "configuration": item["id"], "memory_bytes": total}
                rows.append({**row, "payload_bytes": payload, "headroom_bytes": room})
    return rows
