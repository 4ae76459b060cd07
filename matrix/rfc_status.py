"""Where an RFC stands: its gates with the command for each, its evidence, its open blockers."""

from __future__ import annotations

from typing import Any

from deepinfer.errors import UsageError
from deepinfer.matrix import gates
from deepinfer.matrix.evidence import GATES as BY_EVIDENCE
from deepinfer.matrix.rfc_check import Report
from deepinfer.matrix.transitions import APPROVED, next_steps
from deepinfer.matrix.validate import Document

_MARKS = {"passed": "passed", "failed": "FAILED", "stale": "stale", "missing": "open"}


def rfc_of(report: Report, number: int) -> Document:
    """The RFC of that number. Raises :class:`UsageError`."""
    found = report.case.rfc_of(number)
    if found is None:
        known = sorted(document.data["number"] for document in report.case.tree.of("rfc") if "number" in document.data)
        raise UsageError(
            "there is no RFC %d" % number,
            fix="the RFCs are: %s" % ", ".join(str(known_number) for known_number in known),
        )
    return found


def gates_of(report: Report, entry: dict[str, Any], rfc: Document | None) -> list[gates.Gate]:
    """The gates of a compiled entry; findings on its file or its RFC keep ``facts`` open."""
    paths = {"matrix/entries/%s.toml" % entry["id"], rfc.path if rfc else ""}
    clean = not any(finding.path in paths for finding in report.findings)
    payload = report.case.tree.of("model")[0].data["payload_bytes"]
    blockers = rfc.data.get("blocker", []) if rfc else []
    return gates.of_entry(report.case.tree.root, entry, payload, blockers, report.case.evidence, clean)


def status_of(report: Report, number: int) -> dict[str, Any]:
    """Everything about one RFC, as data."""
    rfc = rfc_of(report, number)
    entries = []
    for document in report.case.entries_of(rfc):
        entry = next((item for item in report.case.compiled if item["id"] == document.data.get("id")), None)
        if entry is None:
            continue
        found = gates_of(report, entry, rfc)
        own = [item for item in report.case.evidence if item.data and item.data["entry"] == entry["id"]]
        entries.append(
            {
                "entry": entry["id"],
                "status": entry["status"],
                "engine": entry["engine"],
                "gates": [gate._asdict() for gate in found],
                "evidence": [
                    {
                        **{key: item.data[key] for key in ("gate", "outcome", "finished", "commit")},
                        "path": item.path,
                        "counts": item.counts,
                    }
                    for item in own
                ],
            }
        )
    findings = [finding._asdict() for finding in report.findings]
    return {
        "schema": 1,
        "rfc": number,
        "title": rfc.data.get("title", ""),
        "file": rfc.path,
        "front_matter": rfc.data,
        "upstream": [item.get("url", "") for item in rfc.data.get("upstream", [])],
        "entries": entries,
        "blockers": rfc.data.get("blocker", []),
        "findings": findings if not report.case.compiled else [f for f in findings if f["path"] == rfc.path],
    }


def status_text(data: dict[str, Any]) -> str:
    """The same in plain words."""
    lines = ["RFC %d: %s" % (data["rfc"], data["title"]), "  file       %s" % data["file"]]
    lines += ["  upstream   %s" % url for url in data["upstream"]]
    for entry in data["entries"]:
        passed = [gate["name"] for gate in entry["gates"] if gate["state"] == "passed"]
        shown = [name for name in passed if name in BY_EVIDENCE]
        lines += ["", "%s: %s, our engine: %s" % (entry["entry"], entry["status"], entry["engine"])]
        words = "  gates      %d of %d passed, %d of them by evidence; next step: %s"
        lines.append(words % (len(passed), len(entry["gates"]), len(shown), next_steps(entry["status"])))
        for gate in entry["gates"]:
            date = gate["date"] and gate["date"] + "  "
            lines.append("  %-7s    %-12s %s%s" % (_MARKS[gate["state"]], gate["name"], date, gate["detail"]))
            if gate["state"] != "passed" and gate["command"]:
                lines.append("%s-> %s" % (" " * 24, gate["command"]))
        for item in entry["evidence"]:
            mark = "" if item["counts"] else ", does not count: see rfc check"
            lines.append("  evidence   %s%s" % (item["path"], mark))
    lines.append("")
    lines += ["  blocker    %s (%s): %s" % (b.get("id"), b.get("kind"), b.get("text")) for b in data["blockers"]]
    if not data["entries"] and not data["findings"]:
        lines.append("  it proposes no device, so it has no gates")
    lines += ["  finding    %(path)s:%(line)d: %(rule)s: %(message)s" % finding for finding in data["findings"]]
    return "\n".join(lines).rstrip() + "\n"


def needs_approval(status: str) -> bool:
    """Whether the step to ``status`` is somebody else's to agree to."""
    return status in APPROVED
