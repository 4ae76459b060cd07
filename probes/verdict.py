"""The verdict: what the judge concluded, ready to be printed, serialized or turned into an exit code."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, UNKNOWN, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from deepinfer.probes.facts.device import Device

SCHEMA = 1
ELIGIBLE, DRAFT, UNSUPPORTED = "eligible", "draft", "unsupported"
NO_ACCELERATOR, FIXABLE, UNDETERMINED = "no-accelerator", "fixable", "undetermined"
EXIT_CODES = {ELIGIBLE: 0, DRAFT: 3, UNSUPPORTED: 4, NO_ACCELERATOR: 5, FIXABLE: 6, UNDETERMINED: 7}
ASPECTS = ("build", "run")
# A host takes the best of its devices' verdicts. One that could not be read may be a supported one: before draft.
ORDER = (ELIGIBLE, FIXABLE, UNDETERMINED, DRAFT, UNSUPPORTED)


def of_findings(findings: list[Finding], aspects: tuple[str, ...] = ASPECTS) -> str:
    """Verdict on a supported entry: what fails can be mended; what is unknown and not failing leaves it open."""
    outcomes = [finding.outcome for finding in findings if _concerns(finding, aspects)]
    if FAIL in outcomes:
        return FIXABLE
    return UNDETERMINED if UNKNOWN in outcomes else ELIGIBLE


def blocking_kinds(findings: list[Finding], aspects: tuple[str, ...] = ASPECTS) -> list[str]:
    """Kinds of the checks that stand in the way."""
    bad = [finding for finding in findings if finding.outcome in (FAIL, UNKNOWN) and _concerns(finding, aspects)]
    return sorted({finding.kind for finding in bad})


def _concerns(finding: Finding, aspects: tuple[str, ...]) -> bool:
    return any(aspect in aspects for aspect in finding.aspects)


class DeviceVerdict:
    """One device, its verdict and its entry (None: no entry lists it, or it is not identified)."""

    __slots__ = ("device", "entry", "label", "source", "verdict")

    def __init__(self, device: Device, label: str, entry: dict[str, Any] | None, verdict: str, source: str) -> None:
        self.device = device
        self.label = label
        self.entry = entry
        self.verdict = verdict
        self.source = source


class Verdict:
    """The whole answer. ``entry`` and ``rfc_number`` are those of the device that decided; ``notes`` are remarks."""

    def __init__(self, verdict: str, aspects: tuple[str, ...]) -> None:
        self.verdict = verdict
        self.judged = aspects
        self.entry: dict[str, Any] | None = None
        self.findings: list[Finding] = []
        self.devices: list[DeviceVerdict] = []
        self.capacity = "unknown"
        self.memory_bytes: int | None = None
        self.notes: list[str] = []
        self.eligible_entries: list[str] = []
        self.toolchain: Any = None
        self.cross = False  # judged for a named entry that no device here belongs to
        self.named_by = ""  # the setting that named the entry, if one did

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def rfc_number(self) -> int | None:
        return self.entry["rfc"] if self.entry and self.verdict == DRAFT else None

    @property
    def blocking(self) -> list[str]:
        return blocking_kinds(self.findings, self.judged)

    def document(self) -> dict[str, Any]:
        """The JSON document: no identifier of the host in it, and the same for the same record everywhere."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "entry": self.entry["id"] if self.entry else None,
            "rfc": self.rfc_number,
            "blocking": self.blocking,
            "capacity": self.capacity,
            "aspects": {aspect: self._aspect(aspect) for aspect in self.judged},
            "devices": [_device(item) for item in self.devices],
            "checks": [_check(finding) for finding in self.findings],
            "notes": list(self.notes),
        }

    def _aspect(self, aspect: str) -> dict[str, Any]:
        own = self.verdict
        if self.verdict in (ELIGIBLE, FIXABLE, UNDETERMINED) and self.entry:
            own = of_findings(self.findings, (aspect,))
        return {"verdict": own, "blocking": blocking_kinds(self.findings, (aspect,))}


def _device(item: DeviceVerdict) -> dict[str, Any]:
    device = item.device
    return {
        "vendor": device.vendor,
        "index": device.index,
        "name": item.label,
        "arch": device.arch or None,
        "identified_by": item.source or None,
        "pci_id": device.pci_id or None,
        "memory_bytes": device.memory_bytes,
        "exposed": device.exposed,
        "visible": device.visible,
        "partitions": [label for label, _, _ in device.partitions],
        "entry": item.entry["id"] if item.entry else None,
        "verdict": item.verdict,
    }


def _check(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "aspects": list(finding.aspects),
        "outcome": finding.outcome,
        "found": finding.found,
        "needed": finding.needed or None,
        "where": finding.where or None,
        "why": finding.why or None,
        "fix": finding.fix or None,
    }
