"""The text report: the first line answers, then only what matters, reason and next command last."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, UNKNOWN, WARN, Finding
from deepinfer.probes.verdict import DRAFT, ELIGIBLE, FIXABLE, NO_ACCELERATOR, UNSUPPORTED, DeviceVerdict, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINES = 12  # what pip shows of a refusal without scrolling
_COLORS = {ELIGIBLE: "32", FIXABLE: "33", DRAFT: "33"}


def text(verdict: Verdict, index: dict[str, Any], *, everything: bool = False, color: bool = False) -> str:
    """The report of ``verdict``; ``everything`` lists every check and device."""
    first = headline(verdict, index)
    if color:
        first = "\033[1;%sm%s\033[0m" % (_COLORS.get(verdict.verdict, "31"), first)
    tail = _ending(verdict, index)
    body = _everything(verdict) if everything else _what_matters(verdict, index, LINES - 1 - len(tail))
    return "\n".join([first, *body, *tail])


def summary(devices: list[DeviceVerdict]) -> str:
    """``8 x NVIDIA B200, 1 x NVIDIA H20``."""
    counts: dict[str, int] = {}
    for item in devices:
        counts[item.label] = counts.get(item.label, 0) + 1
    return ", ".join("%d x %s" % (count, label) for label, count in counts.items())


def headline(verdict: Verdict, index: dict[str, Any]) -> str:
    """The one line that answers "can this machine run DeepInfer?"."""
    entry = verdict.entry
    own = [item for item in verdict.devices if item.entry and entry and item.entry["id"] == entry["id"]]
    seen = summary(own) or (entry["title"] if entry else "")
    if verdict.verdict == NO_ACCELERATOR:
        return "No accelerator: /sys/bus/pci/devices and /dev were read and show none."
    if entry is None:
        seen = summary(verdict.devices)
        if verdict.verdict == UNSUPPORTED:
            return "Not listed: %s. No entry of the support matrix names it; an RFC can propose it." % seen
        return "Undetermined: %s." % (
            (seen and "%s could not be identified" % seen) or "whether an accelerator is here could not be read"
        )
    if verdict.verdict == DRAFT:
        word = "Draft RFC only" if entry["status"] == "draft" else "Accepted RFC, nothing built yet"
        return "%s: %s (%s), RFC %d." % (word, seen, entry["id"], entry["rfc"])
    if verdict.verdict == UNSUPPORTED:
        word = {"removed": "No longer supported"}.get(entry["status"], "Not supported")
        return "%s: %s (%s)." % (word, seen, entry["id"])
    return _supported_line(verdict, seen, index)


def _supported_line(verdict: Verdict, seen: str, index: dict[str, Any]) -> str:
    entry = verdict.entry or {}
    doing = "build and run" if len(verdict.judged) == 2 else verdict.judged[0]
    kind = "reference target" if entry["status"] == "reference" else "supported target"
    if verdict.verdict == ELIGIBLE:
        if verdict.capacity == "does-not-fit" and "run" in verdict.judged:
            return (
                "Eligible: %s (%s) is a supported target; "
                "the default checkpoint does not fit here (needs %d bytes, %d here)."
                % (
                    seen,
                    entry["id"],
                    index["model"]["payload_bytes"],
                    verdict.memory_bytes or 0,
                )
            )
        return "Eligible: %s (%s) is a %s, and this host can %s for it." % (seen, entry["id"], kind, doing)
    start = "%s: %s (%s) is a %s" % (verdict.verdict.capitalize(), seen, entry["id"], kind)
    failing, unread = _counted(verdict.findings, FAIL), _counted(verdict.findings, UNKNOWN)
    if verdict.verdict == FIXABLE:
        also = "; %s could not be read" % unread if unread else ""
        return "%s; to %s here, mend %s%s." % (start, doing, failing, also)
    return "%s, but %s could not be read." % (start, unread)


def _counted(findings: list[Finding], outcome: str) -> str:
    """``2 checks (driver, toolkit)``; an empty string for none."""
    own = [finding for finding in findings if finding.outcome == outcome]
    if not own:
        return ""
    kinds = sorted({finding.kind for finding in own})
    return "%d check%s (%s)" % (len(own), "" if len(own) == 1 else "s", ", ".join(kinds))


def _what_matters(verdict: Verdict, index: dict[str, Any], room: int) -> list[str]:
    if verdict.verdict == DRAFT and verdict.entry:
        rfc = index["rfcs"][str(verdict.entry["rfc"])]
        lines = ["  open  %s: %s" % (item["id"], item["text"]) for item in rfc["blockers"]]
        return ["  RFC %d: %s" % (verdict.entry["rfc"], rfc["title"]), *lines][:room]
    if verdict.verdict in (NO_ACCELERATOR, UNSUPPORTED):
        return []
    lines = []
    for outcome in (FAIL, UNKNOWN, WARN):
        for finding in verdict.findings:
            if finding.outcome == outcome and not (outcome == WARN and finding.kind == "capacity"):
                lines += finding_lines(finding)
    lines += ["  note  %s" % note for note in verdict.notes]
    if len(lines) > room:
        kept = lines[: room - 1]
        return [*kept, "  ...   %d more lines with --all" % (len(lines) - len(kept))]
    return lines


def finding_lines(finding: Finding) -> list[str]:
    """``fail  driver.version: 570 found, >=580 needed`` and its fix."""
    needed = "; needed: %s" % finding.needed if finding.needed and finding.outcome != "pass" else ""
    lines = ["  %-7s %s: %s%s" % (finding.outcome, finding.id, finding.found, needed)]
    if finding.fix:
        lines.append("          fix: %s" % finding.fix)
    return lines


def _everything(verdict: Verdict) -> list[str]:
    lines = []
    for item in verdict.devices:
        device = item.device
        memory = "%d bytes" % device.memory_bytes if device.memory_bytes else "memory unknown"
        hidden = "" if device.visible else ", hidden"
        lines.append(
            "  device  %s %d: %s, %s (by %s), %s%s -> %s"
            % (
                device.vendor,
                device.index,
                item.label,
                device.arch or device.pci_id or "not identified",
                item.source or "nothing",
                memory,
                hidden,
                item.verdict,
            )
        )
    for finding in verdict.findings:
        lines += finding_lines(finding)
        if finding.where and finding.outcome != "pass":
            lines.append("          looked: %s" % finding.where)
        if finding.why:
            lines.append("          why: %s" % finding.why)
    return lines + ["  note  %s" % note for note in verdict.notes]


def _ending(verdict: Verdict, index: dict[str, Any]) -> list[str]:
    """Reason and next command: the last lines, because installers cut from the top."""
    entry = verdict.entry
    if verdict.verdict == NO_ACCELERATOR:
        advice = next((item["advice"] for item in index["skip"] if item["id"] == "no-accelerator"), "")
        return [
            "why: DeepInfer runs on %s only." % " and ".join(supported_titles(index)),
            "next: %s" % advice,
            "next: to build for another machine: pip install . -C deepinfer.target=%s" % supported_ids(index)[0],
        ]
    if verdict.verdict == DRAFT and entry:
        rfc = index["rfcs"][str(entry["rfc"])]
        link = " (%s)" % rfc["upstream"] if rfc["upstream"] else ""
        return [
            "why: an RFC proposes this device; until its blockers are closed with evidence nothing is built for it.",
            "next: read %s%s" % (rfc["file"], link),
        ]
    if verdict.verdict == UNSUPPORTED:
        why = next((finding.why for finding in verdict.findings if finding.why), "")
        fix = next((finding.fix for finding in verdict.findings if finding.fix), "")
        return ["why: %s" % why, "next: %s" % fix]
    if verdict.verdict == ELIGIBLE:
        return [
            "next: %s" % ("pip install ." if "build" in verdict.judged else "python3 -m deepinfer.probe --for build")
        ]
    why = next(
        (
            "%s: %s" % (finding.id, finding.why)
            for finding in verdict.findings
            if finding.outcome == FAIL and finding.why
        ),
        "",
    )
    return [*(["why: %s" % why] if why else []), "next: mend what is listed, then: %s" % _again(verdict)]


def _again(verdict: Verdict) -> str:
    """The command that asks the same question again."""
    entry = verdict.entry
    if verdict.named_by.startswith("-C") and entry:
        return "pip install . %s=%s" % (verdict.named_by, entry["id"])
    if verdict.named_by and entry:
        return "%s=%s pip install ." % (verdict.named_by, entry["accelerator"])
    return "python3 -m deepinfer.probe" + (" --for %s" % verdict.judged[0] if len(verdict.judged) == 1 else "")


def supported_ids(index: dict[str, Any]) -> list[str]:
    """Ids of the entries that are built for, NVIDIA first."""
    return sorted(
        (e["id"] for e in index["entries"] if e["status"] == "supported"), key=lambda name: (name[0] != "n", name)
    )


def supported_titles(index: dict[str, Any]) -> list[str]:
    by_id = {entry["id"]: entry["title"] for entry in index["entries"]}
    return [by_id[name] for name in supported_ids(index)]
