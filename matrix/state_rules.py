"""Rules about state: steps against a base, capacity, gates and waivers; and what time does, as warnings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from deepinfer.matrix import gates
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.rfc_case import RfcCase
from deepinfer.matrix.transitions import may_move, next_steps
from deepinfer.matrix.vocabulary import ACCELERATED, PROPOSED

WAIVER_DAYS = 90
READ_DAYS = 180


def against_base(case: RfcCase) -> Iterator[Finding]:
    """R5: since the base, each status moved by one step at most, and histories were only added to."""
    if case.base is None:
        return
    before = {item.data.get("id"): item.data.get("status") for item in case.base.of("entry")}
    for entry in case.tree.of("entry"):
        old, new = before.get(entry.data.get("id")), entry.data.get("status")
        if before and new is not None and not may_move(old, new):
            message = "from %s to %s is no single step" % (old or "nothing", new)
            fix = "%s goes to: %s" % (old, next_steps(str(old))) if old else "begin with a draft"
            yield entry.finding("R5", message, fix, "status")
    now = {item.data.get("id") for item in case.tree.of("entry")}
    for gone in sorted(str(name) for name in before if name not in now and before[name] != "unsupported"):
        path = "matrix/entries/%s.toml" % gone
        yield Finding(path, 1, "R5", "the entry is gone", "restore it: what was proposed stays, with its outcome")
    histories = {item.data.get("number"): item.data.get("history", []) for item in case.base.of("rfc")}
    for rfc in case.tree.of("rfc"):
        old_steps = histories.get(rfc.data.get("number"), [])
        if rfc.data.get("history", [])[: len(old_steps)] != old_steps:
            yield rfc.finding(
                "R5", "its history was rewritten", "restore the old steps, and add new ones below", "history"
            )


def kept(case: RfcCase) -> Iterator[Finding]:
    """R21: evidence is kept, failures too; in its folder lies nothing else."""
    here = {item.path for item in case.evidence}
    for path in case.base_evidence or []:
        if path not in here:
            yield Finding(path, 1, "R21", "evidence is gone", "restore it: failures are kept and shown")
    root = case.tree.root
    for sig in sorted((root / "matrix" / "evidence").rglob("*.sig")):
        name = sig.relative_to(root).as_posix()
        if name[: -len(".sig")] not in here:
            yield Finding(name, 1, "R21", "a signature of nothing", "remove it, or restore its evidence")


def capacity(case: RfcCase) -> Iterator[Finding]:
    """R8: the memory of a configuration holds the weights, or a blocker of kind capacity says that it does not."""
    payload = next((item.data.get("payload_bytes") for item in case.tree.of("model")), None)
    for entry in case.tree.of("entry"):
        rfc = case.rfc_of(entry.data.get("rfc", -1))
        kinds = [item.get("kind") for item in rfc.data.get("blocker", [])] if rfc else []
        for number, item in enumerate(entry.data.get("configuration", [])):
            memory = item.get("count", 0) * item.get("memory_bytes", 0)
            if payload and memory and memory < payload and "capacity" not in kinds:
                message = "%d of %d bytes are missing, and no blocker says so" % (payload - memory, payload)
                fix = "add a [[blocker]] of kind capacity to its RFC, or a larger configuration"
                yield entry.finding("R8", message, fix, "configuration", number, "count")


def passed(case: RfcCase) -> Iterator[Finding]:
    """R12: what pip builds for an accelerator passed every gate, or says in a waiver that it did not, for a time."""
    for entry in case.tree.of("entry"):
        date, until = entry.get("waiver", "date"), entry.get("waiver", "until")
        if date and until and not date < until <= date + dt.timedelta(days=WAIVER_DAYS):
            message = "a waiver of %s ends by %s" % (date, date + dt.timedelta(days=WAIVER_DAYS))
            yield entry.finding("R12", message, "name an earlier day; gates can be run until then", "waiver", "until")
    for data in case.compiled:
        entry = next(item for item in case.tree.of("entry") if item.data["id"] == data["id"])
        if data["status"] not in ACCELERATED or "waiver" in entry.data:
            continue
        payload = case.tree.of("model")[0].data["payload_bytes"]
        found = gates.of_entry(case.tree.root, data, payload, [], case.evidence, clean=True)
        open_gates = [gate.name for gate in found if gate.state != "passed"]
        if open_gates:
            message = "%s without a waiver, and these gates are open: %s" % (data["status"], ", ".join(open_gates))
            fix = "close them with python -m deepinfer.attest, or say in a dated [waiver] what is missing"
            yield entry.finding("R12", message, fix, "status")


def warnings(case: RfcCase) -> Iterator[Finding]:
    """What only time did; never a finding, so that no change fails by the calendar."""
    for entry in case.tree.of("entry"):
        until = entry.get("waiver", "until")
        if until is not None and until < case.today:
            fix = "run its gates, or renew it with a reason"
            yield entry.finding("W1", "the waiver ended on %s" % until, fix, "waiver", "until")
    oldest = case.today - dt.timedelta(days=READ_DAYS)
    for rfc in case.tree.of("rfc"):
        for number, item in enumerate(rfc.data.get("upstream", [])):
            if "read" in item and item["read"] < oldest and set(case.statuses_of(rfc)) & set(PROPOSED):
                message = "nobody has read upstream since %s" % item["read"]
                yield rfc.finding("W2", message, "read it again and correct `read`", "upstream", number, "read")
    for data in case.compiled:
        for gate in ("probe", "build", "conformance"):
            state = gates.of_evidence(case.tree.root, data, gate, case.evidence)
            if state.state in ("stale", "failed"):
                path = "matrix/entries/%s.toml" % data["id"]
                message = "%s: %s on %s: %s" % (gate, state.state, state.date, state.detail)
                yield Finding(path, 1, "W3", message, state.command)
