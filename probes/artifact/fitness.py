"""Does this artifact fit this host? Compared before the native module is used; a misfit is an error, never a crash."""

from __future__ import annotations

from deepinfer.errors import DeepInferError
from deepinfer.probes.artifact.installed import Installed
from deepinfer.probes.check import FAIL
from deepinfer.probes.judge import BUILT, judge
from deepinfer.probes.report import summary
from deepinfer.probes.verdict import DRAFT, ELIGIBLE, FIXABLE, NO_ACCELERATOR, UNDETERMINED, Verdict
from deepinfer.probes.view import HostView
from deepinfer.probes.wish import Wish, entry_by_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class WrongTarget(DeepInferError):
    """Installed is an artifact of another target than the one that is asked for: often a wheel from a cache."""

    code = "DI320"


class WrongMachine(DeepInferError):
    """The artifact was built for another processor."""

    code = "DI321"


class NoDevice(DeepInferError):
    """The artifact needs an accelerator, and this host has none."""

    code = "DI322"


class OtherDevice(DeepInferError):
    """The artifact's code does not run on the devices of this host."""

    code = "DI323"


class DeviceNotUsable(DeepInferError):
    """The right device is here; its driver, its exposure or its state stands in the way."""

    code = "DI324"


class HostUnread(DeepInferError):
    """Nobody could read which devices this host has."""

    code = "DI325"


def require(installed: Installed, view: HostView, index: dict[str, Any]) -> None:
    """Return if the artifact may be used here; otherwise raise one of the errors above."""
    record = installed.record
    machine = view.machine().value
    if record["machine"] != machine:
        what = "the artifact is for %s; this is %s" % (record["machine"], machine)
        raise WrongMachine(what, fix=installed.reinstall())
    entry = entry_by_id(record["entry"], index)
    _same_wish(installed, entry, view, index)
    if entry["vendor"] == "host":
        _not_a_fallback(installed, view, index)
        return
    wish = Wish()
    wish.target, wish.named_by = entry["id"], "artifact"
    verdict = judge(view, index, wish, aspect="run")
    if verdict.cross:
        _no_such_device(installed, entry, verdict, view, index)
    failing = [finding for finding in verdict.findings if finding.outcome == FAIL]
    if failing:
        first = failing[0]
        more = "" if len(failing) == 1 else " (and %d more: python3 -m deepinfer.probe)" % (len(failing) - 1)
        raise DeviceNotUsable(
            "%s: %s: %s%s" % (summary(verdict.devices), first.id, first.found, more),
            why=first.why or "needed: %s" % first.needed,
            fix=first.fix,
        )


def _variable(entry: dict[str, Any]) -> str:
    return "DEEPINFER_ACCELERATOR=%s" % entry["accelerator"]


def _same_wish(installed: Installed, entry: dict[str, Any], view: HostView, index: dict[str, Any]) -> None:
    """A target that a variable still names at run time is the one that must be installed."""
    wanted = view.env_text("DEEPINFER_ACCELERATOR").strip()
    if wanted in ("", "auto", entry["accelerator"]):
        return
    other = next((item for item in index["entries"] if item["accelerator"] == wanted), None)
    if other is not None:
        raise WrongTarget(
            "installed is the artifact of %s, asked for is %s (DEEPINFER_ACCELERATOR=%s)"
            % (entry["id"], other["id"], wanted),
            why="pip and uv may reuse a wheel that was built for another target",
            fix=installed.reinstall(_variable(other)),
        )


def _not_a_fallback(installed: Installed, view: HostView, index: dict[str, Any]) -> None:
    """The reference target is used where it was asked for, and where there is nothing better; never instead of it."""
    if view.env_text("DEEPINFER_ACCELERATOR").strip() == "cpu":
        return
    verdict = judge(view, index, Wish(), aspect="run")
    if verdict.verdict in (ELIGIBLE, FIXABLE) and verdict.entry and verdict.entry["status"] in BUILT:
        raise WrongTarget(
            "installed is the reference artifact for the CPU, and this host has %s" % summary(verdict.devices),
            why="a wheel from a cache may have been reused; the CPU is never a fallback",
            fix="%s   (or, to mean the CPU: export DEEPINFER_ACCELERATOR=cpu)"
            % installed.reinstall(_variable(verdict.entry)),
        )


def _no_such_device(
    installed: Installed, entry: dict[str, Any], verdict: Verdict, view: HostView, index: dict[str, Any]
) -> None:
    what = "the artifact is for %s (%s)" % (entry["id"], entry["title"])
    host = judge(view, index, Wish(), aspect="run")
    if host.verdict == UNDETERMINED:
        finding = host.findings[0]
        raise HostUnread("%s; %s: %s" % (what, finding.id, finding.found), why=finding.why, fix=finding.fix)
    if host.verdict == NO_ACCELERATOR:
        raise NoDevice(
            "%s, and this host has no accelerator" % what,
            fix="use it on a host that has one, or: %s" % installed.reinstall("DEEPINFER_ACCELERATOR=cpu"),
        )
    seen = summary(host.devices)
    if host.verdict in (ELIGIBLE, FIXABLE) and host.entry:
        fix = installed.reinstall(_variable(host.entry))
        raise OtherDevice("%s, and this host has %s (%s)" % (what, seen, host.entry["id"]), fix=fix)
    why = ""
    if host.verdict == DRAFT and host.entry:
        why = "Draft RFC only: RFC %d" % host.entry["rfc"]
    elif host.findings:
        why = host.findings[0].why
    raise OtherDevice(
        "%s, and this host has %s" % (what, seen),
        why=why,
        fix="use it on a host with %s; what this one is: python3 -m deepinfer.probe" % entry["title"],
    )
