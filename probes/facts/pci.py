"""Accelerators on the PCI bus and on the UnifiedBus, read from sysfs: no driver and no root needed.

PCI class 0x03xxxx of NVIDIA is a GPU (NVSwitches are 0x0680xx); 0x12xxxx of Huawei and of the makers that re-brand its
boards is an NPU. The vendor alone proves nothing: Huawei also makes network cards and management chips.
"""

from __future__ import annotations

from deepinfer.probes.fact import Fact, present, unknown
from deepinfer.probes.view import HostView

FOLDER = "/sys/bus/pci/devices"
UB_FOLDER = "/sys/bus/ub/devices"
NVIDIA = ("10de",)
ASCEND = ("19e5", "20c6", "203f", "20e9")  # Huawei and the board makers that its driver also accepts
UB_NPU = "d800"  # UnifiedBus entity of an Ascend 950 (driver asdrv_ub)


class PciDevice:
    """One accelerator function. ``address`` is dddd:bb:dd.f in lower case, ``id`` is vendor:device."""

    __slots__ = ("address", "driver", "id", "vendor")

    def __init__(self, address: str, vendor: str, identity: str, driver: str) -> None:
        self.address = address
        self.vendor = vendor
        self.id = identity
        self.driver = driver


def hex_id(text: str) -> str:
    """``0x10de\\n`` -> ``10de``; an empty string for anything that is no number."""
    word = text.strip().lower()
    word = word[2:] if word.startswith("0x") else word
    try:
        return "%04x" % int(word, 16)
    except ValueError:
        return ""


def normal_address(text: str) -> str:
    """``00000008:01:00.0`` (NVIDIA's tools) -> ``0008:01:00.0`` (sysfs)."""
    domain, mark, rest = text.strip().lower().partition(":")
    if not mark or not rest:
        return ""
    try:
        return "%04x:%s" % (int(domain, 16), rest)
    except ValueError:
        return ""


def accelerators(view: HostView) -> Fact:
    """List of :class:`PciDevice`; unknown if the listing cannot be read."""
    listing = view.names(FOLDER)
    if listing.is_unknown:
        return unknown(listing.reason, FOLDER)
    found = []
    unread = ""
    for address in listing.value or []:
        base = "%s/%s/" % (FOLDER, address)
        vendor_fact = view.read(base + "vendor")
        if vendor_fact.is_unknown:
            unread = vendor_fact.reason
            continue
        vendor = hex_id(vendor_fact.value or "")
        if vendor_fact.is_present and not vendor:
            unread = "%svendor holds no number" % base
            continue
        if vendor not in NVIDIA and vendor not in ASCEND:
            continue
        klass = view.read(base + "class")
        if klass.is_unknown:
            unread = klass.reason
            continue
        wanted = "03" if vendor in NVIDIA else "12"
        if _class(klass.value or "")[:2] != wanted:
            continue
        device = hex_id(view.read(base + "device").value or "")
        driver = view.link(base + "driver")
        name = driver.value.rpartition("/")[2] if driver.is_present else ""
        maker = "nvidia" if vendor in NVIDIA else "ascend"
        found.append(PciDevice(address.lower(), maker, "%s:%s" % (vendor, device), name))
    found += _unified_bus(view)
    if not found and unread:
        return unknown(unread, FOLDER)
    return present(found, FOLDER)


def _class(text: str) -> str:
    """``0x030200`` -> ``030200``."""
    word = text.strip().lower()
    return (word[2:] if word.startswith("0x") else word).rjust(6, "0")


def _unified_bus(view: HostView) -> list[PciDevice]:
    listing = view.names(UB_FOLDER)
    found = []
    for name in listing.value or []:
        device = hex_id(view.read("%s/%s/device" % (UB_FOLDER, name)).value or "")
        if device == UB_NPU:
            found.append(PciDevice("ub:" + name, "ascend", "ub:" + device, "asdrv_ub"))
    return found
