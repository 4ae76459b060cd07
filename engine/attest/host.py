"""The host as evidence tells of it: facts that a reader needs, and of its identity only a hash."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from deepinfer.errors import DeepInferError
from deepinfer.probes import match
from deepinfer.probes.facts.device import Device
from deepinfer.probes.facts.host import HostFacts
from deepinfer.probes.redact import masked
from deepinfer.probes.view import HostView
from deepinfer.probes.wish import Wish

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"  # changes with each start: only where nothing lasting is there


class DeviceElsewhere(DeepInferError):
    """No device of the entry is on this host, or none that a process may use."""

    code = "DI411"


class Seen:
    """The devices of a host that belong to one entry, and what else evidence says of it."""

    def __init__(self, view: HostView, facts: HostFacts, devices: list[Device]) -> None:
        self.view = view
        self.facts = facts
        self.devices = devices


def facts_of(view: HostView) -> HostFacts:
    """Facts of the host behind ``view``, without any wish."""
    return HostFacts(view, Wish())


def find(view: HostView, index: dict[str, Any], entry: dict[str, Any]) -> Seen:
    """The visible devices of ``entry``. Raises :class:`DeviceElsewhere`; the reference needs none."""
    facts = facts_of(view)
    if entry["status"] == "reference":
        return Seen(view, facts, [])
    own = []
    for device in facts.devices:
        found = match.find(device, index).entry
        if device.visible and found is not None and found["id"] == entry["id"]:
            own.append(device)
    if not own:
        seen = sorted({match.label(device, None) for device in facts.devices}) or ["no accelerator"]
        raise DeviceElsewhere(
            "no device of %s is here; this host shows %s" % (entry["id"], ", ".join(masked(name) for name in seen)),
            fix="run it on a host that has one; python3 -m deepinfer.probe --all says what is here",
        )
    return Seen(view, facts, own)


def fingerprint(seen: Seen) -> str:
    """Hash over sorted device UUIDs and the machine's id: tells two hosts apart and names neither."""
    parts = sorted(device.uuid or device.pci for device in seen.devices)
    for path in (*_MACHINE_IDS, *([] if parts else [_BOOT_ID])):
        text = seen.view.read(path)
        if text.is_present and text.value.strip():
            parts.append(text.value.strip())
            break
    return hashlib.sha256("\n".join(["deepinfer-host", *parts]).encode("utf-8")).hexdigest()


def block(seen: Seen, toolkit: str = "") -> dict[str, Any]:
    """The ``host`` of evidence."""
    nvidia = any(device.vendor == "nvidia" for device in seen.devices)
    machine = seen.view.machine()
    return {
        "fingerprint": fingerprint(seen),
        "names": [masked(match.label(device, None)) for device in seen.devices],
        "pci": [device.pci_id for device in seen.devices],
        "arch": [device.arch for device in seen.devices],
        "memory_bytes": [device.memory_bytes or 0 for device in seen.devices],
        "driver": masked(seen.facts.nvidia.driver_version) if nvidia else "",
        "toolkit": toolkit,
        "kernel": _kernel(seen.view),
        "machine": str(machine.value) if machine.is_present else "",
        "container": seen.facts.in_container(),
    }


def _kernel(view: HostView) -> str:
    """The three numbers of the kernel's release; what distributions and builders add may name them."""
    for path, pattern in (
        ("/proc/sys/kernel/osrelease", r"(\d+\.\d+\.\d+)"),
        ("/proc/version", r"version (\d+\.\d+\.\d+)"),
    ):
        text = view.read(path)
        found = re.search(pattern, text.value) if text.is_present else None
        if found:
            return found.group(1)
    return ""
