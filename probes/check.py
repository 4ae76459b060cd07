"""What a check is, and the list of all checks.

A check is one promise about a host: a function of a :class:`Case` that returns a :class:`Finding`, or None where the
promise does not apply. Its docstring is what ``--explain`` prints. Ids are ``<kind>.<name>`` and never change.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.facts.host import HostFacts
    from deepinfer.probes.toolchain import Toolchain

    CheckFunction = Callable[["Case"], "Finding | None"]

KINDS = (
    "os",
    "python",
    "compiler",
    "device",
    "exposure",
    "readiness",
    "driver",
    "toolkit",
    "fabric",
    "capacity",
)
PASS, FAIL, WARN, UNKNOWN = "pass", "fail", "warn", "unknown"


class Finding:
    """Outcome of a check. ``needed``, ``where``, ``why`` and ``fix`` may be empty when it passes."""

    __slots__ = ("aspects", "fix", "found", "id", "needed", "outcome", "where", "why")

    def __init__(
        self, outcome: str, found: str, *, needed: str = "", where: str = "", why: str = "", fix: str = ""
    ) -> None:
        self.id = ""
        self.aspects: tuple[str, ...] = ()
        self.outcome = outcome
        self.found = found
        self.needed = needed
        self.where = where
        self.why = why
        self.fix = fix

    @property
    def kind(self) -> str:
        return self.id.partition(".")[0]


class Case:
    """What a check looks at: the host, the entry that it is judged for, and that entry's devices on it."""

    def __init__(
        self,
        facts: HostFacts,
        index: dict[str, Any],
        entry: dict[str, Any],
        devices: list[Device],
        toolchain: Toolchain,
    ) -> None:
        self.facts = facts
        self.view = facts.view
        self.index = index
        self.entry = entry
        self.devices = devices
        self.toolchain = toolchain

    @property
    def vendor(self) -> str:
        return str(self.entry["vendor"])


class Check:
    """A registered check. ``vendors`` empty: for all; ``aspects``: build, run or both."""

    __slots__ = ("aspects", "function", "id", "vendors")

    def __init__(
        self, identity: str, aspects: tuple[str, ...], vendors: tuple[str, ...], function: CheckFunction
    ) -> None:
        self.id = identity
        self.aspects = aspects
        self.vendors = vendors
        self.function = function

    @property
    def text(self) -> str:
        """What the check promises, for ``--explain``."""
        return (self.function.__doc__ or "").strip()


REGISTERED: dict[str, Check] = {}


def check(
    identity: str, *, aspects: tuple[str, ...], vendors: tuple[str, ...] = ()
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function under ``identity``."""

    def register(function: CheckFunction) -> CheckFunction:
        if identity in REGISTERED or identity.partition(".")[0] not in KINDS:
            raise ValueError("check id %r is taken or of no known kind" % identity)
        REGISTERED[identity] = Check(identity, aspects, vendors, function)
        return function

    return register


def run_checks(case: Case, aspects: tuple[str, ...]) -> list[Finding]:
    """Findings of every check that applies, in the order of ``KINDS``. A check that breaks is an unknown finding."""
    load_all()
    findings = []
    for known in sorted(REGISTERED.values(), key=lambda item: KINDS.index(item.id.partition(".")[0])):
        if known.vendors and case.vendor not in known.vendors:
            continue
        if not any(aspect in aspects for aspect in known.aspects):
            continue
        try:
            finding = known.function(case)
        except Exception as error:  # the report must always print; what broke is part of it
            finding = Finding(
                UNKNOWN,
                "the check itself failed: %s: %s" % (type(error).__name__, error),
                fix="report this with: python3 -m deepinfer.probe --record FILE",
            )
        if finding is not None:
            finding.id = known.id
            finding.aspects = known.aspects
            findings.append(finding)
    return findings


def load_all() -> None:
    """Import every module of checks."""
    from deepinfer.probes.checks import (  # noqa: F401  # noqa: F401
        capacity,
        compiler,
        device,
        driver,
        exposure,
        fabric,
        python,
        readiness,
        system,
        toolkit,
    )
