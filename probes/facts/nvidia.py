"""NVIDIA GPUs and their driver: sysfs and procfs first, then the runtime (NVML, nvidia-smi), merged by PCI address."""

from __future__ import annotations

import re

from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.view import HostView, key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.facts.pci import PciDevice
    from deepinfer.probes.facts.visible import Selection

PROC_VERSION = "/proc/driver/nvidia/version"
PROC_GPUS = "/proc/driver/nvidia/gpus"
SYS_VERSION = "/sys/module/nvidia/version"
WSL_NODE = "/dev/dxg"
_KERNEL = r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)"


class Problem:
    """Why the driver did not answer. ``certain`` is False where only silence was met (a hang, an unreadable text)."""

    __slots__ = ("certain", "fix", "reason", "why")

    def __init__(self, reason: str, why: str, fix: str, certain: bool) -> None:
        self.reason = reason
        self.why = why
        self.fix = fix
        self.certain = certain


class NvidiaFacts:
    """``devices`` as the runtime lists them (or PCI, where no runtime answers) and what is known of the driver."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.on_bus: list[PciDevice] = []
        self.signs: list[str] = []  # what says that NVIDIA hardware or its driver is here
        self.listing_unknown = ""  # reason, if nothing could tell whether there are GPUs
        self.kernel = absent(PROC_VERSION)  # version text of the loaded kernel module
        self.open_module: bool | None = None
        self.driver_versions: list[str] = []  # as the runtime names them, without duplicates
        self.cuda_version: tuple[int, int] | None = None
        self.answered_by = ""
        self.problem: Problem | None = None
        self.nodes: Fact = absent("/dev")
        self.wsl = False
        self.visible_text: str | None = None
        self.selection: Selection | None = None

    @property
    def driver_version(self) -> str:
        """The kernel module's version, else the one that the runtime names."""
        return (
            self.kernel.value if self.kernel.is_present else (self.driver_versions[0] if self.driver_versions else "")
        )


def collect(view: HostView, bus: Fact) -> NvidiaFacts:
    """``bus``: the answer of :func:`deepinfer.probes.facts.pci.accelerators`."""
    facts = NvidiaFacts()
    facts.on_bus = [device for device in bus.value or [] if device.vendor == "nvidia"]
    _read_kernel(view, facts)
    facts.nodes = _nodes(view)
    facts.wsl = WSL_NODE.rpartition("/")[2] in (facts.nodes.value or ())
    facts.signs = (["PCI"] if facts.on_bus else []) + ([PROC_VERSION] if facts.kernel.is_present else [])
    facts.signs += ["/dev"] if any(name.startswith("nvidia") for name in facts.nodes.value or ()) else []
    if facts.wsl:
        facts.signs.append(WSL_NODE)
    looked = not bus.is_unknown or not facts.nodes.is_unknown
    if not facts.signs and looked:
        return facts
    from deepinfer.probes.facts import nvidia_runtime

    nvidia_runtime.ask(view, facts)
    _merge_bus(view, facts)
    if not facts.devices and not looked:
        facts.listing_unknown = bus.reason or facts.nodes.reason
    _hide(view, facts)
    return facts


def _read_kernel(view: HostView, facts: NvidiaFacts) -> None:
    line = view.read(PROC_VERSION)
    if line.is_present:
        match = re.search(_KERNEL, line.value)
        if match:
            facts.kernel = present(match.group(1), PROC_VERSION)
            facts.open_module = "Open Kernel Module" in line.value
            return
        line = unknown("no version in its text", PROC_VERSION)
    version = view.read(SYS_VERSION)
    if version.is_present and version.value.strip():
        facts.kernel = present(version.value.strip(), SYS_VERSION)
    else:
        facts.kernel = line


def _nodes(view: HostView) -> Fact:
    """Names of the GPU nodes in /dev. A listing that cannot be read is tried name by name."""
    listing = view.names("/dev")
    if listing.is_present:
        return present([name for name in listing.value if name.startswith(("nvidia", "dxg"))], "/dev")
    if listing.is_absent:
        return listing
    names = ("nvidiactl", "nvidia0", "nvidia-uvm", "dxg")
    found = [name for name in names if view.exists("/dev/" + name).is_present]
    return present(found, "/dev") if found else unknown(listing.reason, "/dev")


# -- merging ----------------------------------------------------------------------------------------------------------


def _merge_bus(view: HostView, facts: NvidiaFacts) -> None:
    """Add PCI ids to listed devices; without a runtime the bus itself is the list."""
    by_address = {device.address: device for device in facts.on_bus}
    for device in facts.devices:
        found = by_address.get(device.pci)
        if found:
            device.pci_id = device.pci_id or found.id
            device.pci_driver = found.driver
    if facts.devices:
        return
    from deepinfer.probes.facts.device import Device

    names = facts.nodes.value or []
    numbered = {name[len("nvidia") :] for name in names if name[len("nvidia") :].isdigit()}
    for index, on_bus in enumerate(facts.on_bus):
        device = Device("nvidia", index)
        device.pci, device.pci_id, device.pci_driver = on_bus.address, on_bus.id, on_bus.driver
        info = view.read("%s/%s/information" % (PROC_GPUS, on_bus.address))
        values = key_values(info.value, ":") if info.is_present else {}
        device.name = values.get("Model", "")
        minor = values.get("Device Minor", "")
        if facts.nodes.is_unknown:
            device.exposed = None
        elif minor:
            device.exposed = minor in numbered
        else:
            device.exposed = index < len(numbered)
        facts.devices.append(device)


def _hide(view: HostView, facts: NvidiaFacts) -> None:
    text = view.env("CUDA_VISIBLE_DEVICES")
    if not text.is_present:
        return
    from deepinfer.probes.facts import visible

    facts.visible_text = text.value
    facts.selection = chosen = visible.select(text.value, facts.devices)
    for device in facts.devices:
        device.visible = device.index in chosen.indexes
        named = [part for part in device.partitions if part[1] in chosen.partitions]
        if named:
            device.partitions = named[:1]  # a process sees one MIG slice, even if several are named
            device.memory_bytes = named[0][2]
