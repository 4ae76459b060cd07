"""For reviewers of a change: which steps it takes, what facts it moves, where its gates stand, who may approve."""

from __future__ import annotations

from typing import Any

from deepinfer.matrix.load import Tree
from deepinfer.matrix.rfc_check import Report
from deepinfer.matrix.rfc_status import gates_of, needs_approval
from deepinfer.matrix.validate import Document

_UNSOURCED = ("M11", "M16", "R9")


def report_of(report: Report, base: Tree, revision: str) -> dict[str, Any]:
    """What changed since ``base``, as data."""
    before = {document.path: document for document in base.documents if document.kind in ("entry", "rfc")}
    rows = []
    for document in report.case.tree.documents:
        if document.kind not in ("entry", "rfc"):
            continue
        old = before.pop(document.path, None)
        facts = changes(old.data if old else {}, document.data)
        same_text = old is not None and report.case.text(document) == (base.root / document.path).read_text(
            encoding="utf-8"
        )
        if facts or not same_text:
            rows.append(_row(report, document, old, facts))
    return {
        "schema": 1,
        "base": revision,
        "changed": rows,
        "gone": sorted(before),
        "capacity": report.capacity,
        "unsourced": [str(f).splitlines()[0] for f in report.findings if f.rule in _UNSOURCED],
        "findings": [finding._asdict() for finding in report.findings],
        "warnings": [finding._asdict() for finding in report.warnings],
    }


def _row(report: Report, document: Document, old: Document | None, facts: list[str]) -> dict[str, Any]:
    case = report.case
    entry = document.kind == "entry"
    status = (old.data.get("status") if old else None, document.data.get("status"))
    rfc = case.rfc_of(document.data.get("rfc", -1)) if entry else document
    barred = sorted({name for key in ("authors", "maintainers") for name in (rfc.data.get(key, []) if rfc else [])})
    compiled = next((item for item in case.compiled if entry and item["id"] == document.data.get("id")), None)
    return {
        "path": document.path,
        "step": list(status) if entry and status[0] != status[1] else None,
        "facts": facts,
        "gates": [gate._asdict() for gate in gates_of(report, compiled, rfc)] if compiled and rfc else [],
        "approval_needed": entry and status[0] != status[1] and needs_approval(str(status[1])),
        "may_not_approve": barred,
    }


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """``key: old -> new`` for every value that differs, by path."""
    one, other = dict(_flat(old)), dict(_flat(new))
    return [
        "%s: %s -> %s" % (key, one.get(key, "nothing"), other.get(key, "nothing"))
        for key in [*one, *(key for key in other if key not in one)]
        if one.get(key) != other.get(key)
    ]


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flat(item, "%s.%s" % (path, key) if path else key)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [pair for n, item in enumerate(value) for pair in _flat(item, "%s[%s]" % (path, item.get("id", n)))]
    return [(path, str(value))]


def report_text(data: dict[str, Any]) -> str:
    """The same in plain words."""
    lines = [
        "Since %s: %d files of entries and RFCs changed" % (data["base"], len(data["changed"]) + len(data["gone"]))
    ]
    for row in data["changed"]:
        lines += ["", row["path"]]
        if row["step"]:
            lines.append("  step       %s -> %s" % (row["step"][0] or "nothing", row["step"][1]))
        lines += ["  fact       %s" % fact for fact in row["facts"]] or ["  prose only"]
        for gate in row["gates"]:
            lines.append("  gate       %-12s %-8s %s %s" % (gate["name"], gate["state"], gate["date"], gate["detail"]))
        approval = "needed by somebody else than" if row["approval_needed"] else "not needed for this; never by"
        lines.append("  approval   %s: %s" % (approval, ", ".join(row["may_not_approve"]) or "nobody is barred"))
    lines += ["", *("  gone       %s" % path for path in data["gone"])]
    lines += ["capacity: %s" % capacity_text(row) for row in data["capacity"]]
    lines += ["unsourced: %s" % text for text in data["unsourced"]] or ["unsourced: no figure"]
    lines.append("check: %d findings, %d warnings" % (len(data["findings"]), len(data["warnings"])))
    return "\n".join(lines) + "\n"


def capacity_text(row: dict[str, Any]) -> str:
    """One configuration in one line, in bytes."""
    left = row["headroom_bytes"]
    words = "%d bytes left" % left if left >= 0 else "%d bytes short" % -left
    return "%s: %d of %d bytes for the weights, %s" % (
        row["configuration"],
        row["payload_bytes"],
        row["memory_bytes"],
        words,
    )
