"""Which matrix entry a device belongs to: by compute capability or SoC name, by PCI id where no driver answers.

Product names are labels and never decide.
"""

from __future__ import annotations

from deepinfer.probes.facts.arch import soc_name
from deepinfer.probes.facts.device import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Match:
    """``entry`` is None for a device that no entry lists (``known``), and for one that is not identified."""

    __slots__ = ("entry", "known", "source")

    def __init__(self, entry: dict[str, Any] | None, known: bool, source: str) -> None:
        self.entry = entry
        self.known = known
        self.source = source


def find(device: Device, index: dict[str, Any]) -> Match:
    """The entry of ``device``."""
    by_bus = _by_pci(device, index)
    if device.arch:
        entry = _by_arch(device, index)
        # npu-smi's table shortens names (a bare 910B is two products): the bus knows better than it
        if device.vendor == "ascend" and device.identity_source == "npu-smi" and by_bus:
            return Match(by_bus, True, "PCI id %s" % device.pci_id)
        return Match(entry, True, device.identity_source)
    if by_bus:
        return Match(by_bus, True, "PCI id %s" % device.pci_id)
    return Match(None, False, "")


def _by_pci(device: Device, index: dict[str, Any]) -> dict[str, Any] | None:
    for entry in index["entries"]:
        if device.pci_id in entry["match"]["pci"]:
            return dict(entry)
    return None


def _by_arch(device: Device, index: dict[str, Any]) -> dict[str, Any] | None:
    soc = soc_name(device.arch)
    for entry in index["entries"]:
        if device.vendor == "nvidia" and device.arch in entry["match"]["compute_capabilities"]:
            return dict(entry)
        if device.vendor == "ascend" and any(same_soc(pattern, soc) for pattern in entry["match"]["soc"]):
            return dict(entry)
    return None


def same_soc(pattern: str, soc: str) -> bool:
    """``pattern`` is a lower-case name, or the beginning of one before ``*``."""
    return soc.startswith(pattern[:-1]) if pattern.endswith("*") else soc == pattern


def label(device: Device, entry: dict[str, Any] | None) -> str:
    """Name for people: the driver's, else the one that the matrix gives the PCI id."""
    if device.name:
        return device.name if device.vendor == "nvidia" or device.name.startswith("Ascend") else "Ascend " + device.name
    if entry and device.pci_id in entry["match"]["pci"]:
        return str(entry["match"]["pci"][device.pci_id])
    vendor = "NVIDIA GPU" if device.vendor == "nvidia" else "Ascend NPU"
    return "%s %s" % (vendor, device.pci_id) if device.pci_id else vendor
