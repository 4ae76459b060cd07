"""Checks of kind ``capacity``. Never part of the verdict: ranks may span hosts."""

from __future__ import annotations

from deepinfer.probes.check import PASS, WARN, Case, Finding, check
from deepinfer.probes.facts.device import Device

FITS, TOO_SMALL, NOT_KNOWN = "fits", "does-not-fit", "unknown"


def memory(devices: list[Device]) -> int | None:
    """Bytes of all devices together; None if one of them is not known."""
    sizes = [device.memory_bytes for device in devices]
    return None if not sizes or None in sizes else sum(size for size in sizes if size)


def judge(devices: list[Device], payload_bytes: int) -> str:
    """Does the default checkpoint's payload fit into the devices' memory, before any KV cache?"""
    total = memory(devices)
    if total is None:
        return NOT_KNOWN
    return FITS if total >= payload_bytes else TOO_SMALL


@check("capacity.checkpoint", aspects=("run",))
def checkpoint(case: Case) -> Finding | None:
    """The visible devices together hold the default checkpoint, in integer bytes, KV cache and scratch not counted."""
    usable = [device for device in case.devices if device.visible]
    if not usable:
        return None
    needed = case.index["model"]["payload_bytes"]
    total = memory(usable)
    text = "memory of the devices is not known" if total is None else "%d bytes on %d devices" % (total, len(usable))
    if judge(usable, needed) == FITS:
        return Finding(PASS, text, needed="%d bytes" % needed)
    return Finding(
        WARN,
        text,
        needed="%d bytes of %s" % (needed, case.index["model"]["checkpoint"]),
        fix="" if total is None else "use more devices; ranks may span hosts",
    )
