"""Checks of kind ``exposure``: is the device, which the host has, handed to this process?"""

from __future__ import annotations

from deepinfer.probes.check import FAIL, PASS, UNKNOWN, WARN, Case, Finding, check


@check("exposure.nodes", aspects=("run",))
def nodes(case: Case) -> Finding | None:
    """The device nodes in /dev are there. In a container the host's PCI devices show, its nodes only if granted."""
    if case.facts.in_wsl() or not case.devices:
        return None
    vendor = case.facts.nvidia if case.vendor == "nvidia" else case.facts.ascend
    on_bus = len(vendor.on_bus)
    given = [device for device in case.devices if device.exposed]
    if given and not any(device.exposed is None for device in case.devices):
        some = len(given) < max(on_bus, len(case.devices))
        text = (
            "%d of %d devices" % (len(given), max(on_bus, len(case.devices))) if some else "all %d devices" % len(given)
        )
        return Finding(PASS, text, where="/dev")
    held = [device for device in case.devices if device.pci_driver == "vfio-pci"]
    if held:
        return Finding(
            FAIL,
            "%d devices are reserved for a virtual machine (driver vfio-pci)" % len(held),
            where="/sys/bus/pci",
            fix="run inside that machine, or bind the devices to the vendor's driver",
        )
    if vendor.nodes.is_unknown:
        return Finding(UNKNOWN, vendor.nodes.reason, where="/dev", fix="run the probe where /dev can be listed")
    if case.vendor == "nvidia" and not case.facts.nvidia.kernel.is_present:
        return None  # without a driver there are no nodes; driver.module says so
    return _not_given(case, on_bus or len(case.devices))


def _not_given(case: Case, count: int) -> Finding:
    names = "/dev/nvidia*" if case.vendor == "nvidia" else "/dev/davinci*"
    if case.facts.in_container():
        flag = "--gpus all" if case.vendor == "nvidia" else "--device=/dev/davinci0 --device=/dev/davinci_manager"
        return Finding(
            FAIL,
            "0 of %d devices of the host are in this container" % count,
            needed=names,
            where="/dev",
            why="the driver's tools, libraries and nodes are mounted by the container runtime, if it is asked to",
            fix="start the container with: docker run %s ..." % flag,
        )
    fix = "sudo nvidia-modprobe -u -c=0" if case.vendor == "nvidia" else "load the driver: sudo modprobe drv_pcie_host"
    return Finding(FAIL, "no %s" % names, needed="nodes for %d devices" % count, where="/dev", fix=fix)


@check("exposure.visible", aspects=("run",))
def visible(case: Case) -> Finding | None:
    """The visible-devices variable leaves at least one device, and every entry of it names one."""
    nvidia = case.vendor == "nvidia"
    name = "CUDA_VISIBLE_DEVICES" if nvidia else "ASCEND_RT_VISIBLE_DEVICES"
    text = case.facts.nvidia.visible_text if nvidia else case.facts.ascend.visible_text
    if text is None or not case.devices:
        return None
    left = [device for device in case.devices if device.visible]
    found = "%s=%s leaves %d of %d" % (name, text, len(left), len(case.devices))
    if not left:
        return Finding(FAIL, found, needed="at least one device", where="environment", fix="unset %s" % name)
    selection = case.facts.nvidia.selection if nvidia else None
    if selection is not None and selection.stopped_at:
        return Finding(
            WARN,
            "%s; CUDA stops reading at %r" % (found, selection.stopped_at),
            where="environment",
            fix="write %s with numbers or UUIDs of devices that are here" % name,
        )
    mixed = len({device.arch or device.pci_id for device in case.facts.nvidia.devices}) > 1 if nvidia else False
    if mixed and any(part.strip().isdigit() for part in text.split(",")):
        order = case.view.env_text("CUDA_DEVICE_ORDER")
        if order != "PCI_BUS_ID":
            return Finding(
                WARN,
                found,
                why="the devices differ, and CUDA numbers the fastest first",
                fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            )
    return Finding(PASS, found, where="environment")
