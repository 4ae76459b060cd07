"""NVIDIA GPUs and their driver: sysfs and procfs first, then NVML, then nvidia-smi."""

from __future__ import annotations

import re

from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.facts import nvidia_smi, nvml, visible
from deepinfer.probes.facts.device import Device
from deepinfer.probes.facts.pci import PciDevice, normal_address
from deepinfer.probes.view import HostView, key_values

PROC_VERSION = "/proc/driver/nvidia/version"
PROC_GPUS = "/proc/driver/nvidia/gpus"
SYS_VERSION = "/sys/module/nvidia/version"
WSL_NODE = "/dev/dxg"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)
_KERNEL = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")


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
        self.selection: visible.Selection | None = None

    @property
    def driver_version(self) -> str:
        """The kernel module's version, else the one that the runtime names."""
        return self.kernel.value if self.kernel.is_present else (self.driver_versions[0] if self.driver_versions else "")


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
    if not _ask_nvml(view, facts):
        _ask_tool(view, facts)
    _merge_bus(view, facts)
    if not facts.devices and not looked:
        facts.listing_unknown = bus.reason or facts.nodes.reason
    _hide(view, facts)
    return facts


def _read_kernel(view: HostView, facts: NvidiaFacts) -> None:
    line = view.read(PROC_VERSION)
    if line.is_present:
        match = _KERNEL.search(line.value)
        if match:
            facts.kernel = present(match.group(1), PROC_VERSION)
            facts.open_module = "Open Kernel Module" in line.value
            return
        line = unknown("no version in %.80r" % line.value, PROC_VERSION)
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


# -- NVML -------------------------------------------------------------------------------------------------------------


def _ask_nvml(view: HostView, facts: NvidiaFacts) -> bool:
    """True if NVML answered with devices, or with a reason that nvidia-smi could only repeat."""
    document = view.nvml()
    if not document.is_present:
        if document.is_unknown and "no answer" in document.reason:
            facts.problem = Problem("the driver does not answer (%s)" % document.reason, "", _HANG_FIX, certain=False)
            return True
        return False
    answers = nvml.Answers(document.value)
    code = answers.code("init")
    if code is None:
        broken = document.value.get("broken")
        if isinstance(broken, list) and broken:
            facts.problem = Problem("the driver library cannot be loaded", str(broken[0])[:200], _LIBRARY_FIX, certain=True)
        return False
    if code != nvml.SUCCESS:
        reason, fix = nvml.ERRORS.get(code, ("NVML answers error %d" % code, "run nvidia-smi and read its message"))
        facts.problem = Problem(reason, "NVML error %d" % code, fix, certain=True)
        return True
    facts.answered_by = "nvml"
    facts.devices = nvml.devices(answers)
    version = answers.value("driver_version", str)
    facts.driver_versions = [version] if version else []
    number = answers.value("cuda_version", int)
    facts.cuda_version = (number // 1000, number % 1000 // 10) if number else None
    return True


_HANG_FIX = "reboot the host: the driver hangs (read: dmesg | grep -i -e nvrm -e xid)"
_LIBRARY_FIX = "reinstall the driver's user-space libraries, or restart the container with GPU access"


# -- nvidia-smi -------------------------------------------------------------------------------------------------------


def _ask_tool(view: HostView, facts: NvidiaFacts) -> None:
    answer = view.run(nvidia_smi.query(nvidia_smi.COLUMNS))
    if answer.is_present and answer.value.rc == 2 and "not a valid field" in answer.value.out + answer.value.err:
        answer = view.run(nvidia_smi.query(nvidia_smi.OLD_COLUMNS))
    if answer.is_unknown and "not recorded" not in answer.reason:
        facts.problem = Problem("nvidia-smi: %s" % answer.reason, "", _HANG_FIX, certain=False)
        return
    rows = nvidia_smi.parse_csv(answer.value.out) if answer.is_present and answer.value.rc == 0 else None
    if rows is None:
        _ask_banner(view, facts, answer)
        return
    facts.answered_by = "nvidia-smi"
    facts.problem = None
    for row in rows:
        facts.devices.append(_row(row))
        version = row.get("driver_version", "")
        if version and version not in facts.driver_versions:
            facts.driver_versions.append(version)
    banner = view.run(["nvidia-smi"])
    if banner.is_present:
        facts.cuda_version = nvidia_smi.parse_banner(banner.value.out)[1]
    if any(device.partitioned for device in facts.devices):
        _read_slices(view, facts)
    detail = view.run(["nvidia-smi", "-q"])
    if detail.is_present:
        states = nvidia_smi.parse_fabric(detail.value.out)
        for device in facts.devices:
            # Some records keep one section for all; every GPU of one host reports the same fabric.
            device.fabric = states[min(device.index, len(states) - 1)] if states else None


def _row(row: dict[str, str]) -> Device:
    device = Device("nvidia", int(row["index"]))
    device.name = row["name"]
    device.exposed = True
    device.uuid = row.get("uuid", "")
    device.arch = row.get("compute_cap", "")
    device.identity_source = "nvidia-smi" if device.arch else ""
    device.pci = normal_address(row.get("pci.bus_id", ""))
    device.memory_bytes = nvidia_smi.mebibytes(row.get("memory.total", ""))
    mode = row.get("mig.mode.current")
    device.partitioned = None if mode is None else mode == "Enabled"
    return device


def _read_slices(view: HostView, facts: NvidiaFacts) -> None:
    listing = view.run(["nvidia-smi", "-L"])
    slices = nvidia_smi.parse_list(listing.value.out) if listing.is_present else {}
    for device in facts.devices:
        if device.partitioned:  # the text has no size of a slice, and the parent's size is not its size
            device.partitions = [(profile, uuid, None) for profile, uuid in slices.get(device.index, [])]
            device.memory_bytes = None


def _ask_banner(view: HostView, facts: NvidiaFacts, answer: Fact) -> None:
    """The query gave nothing usable: the plain call may at least name versions, or the error."""
    if answer.is_absent:
        return
    if answer.is_present and answer.value.rc == 127:
        return
    plain = view.run(["nvidia-smi"]) if not (answer.is_present and answer.value.rc != 0) else answer
    if not plain.is_present:
        if answer.is_present:
            facts.problem = Problem("nvidia-smi prints what nobody can parse: %.200r" % answer.value.out, "", "", certain=False)
        return
    version, facts.cuda_version = nvidia_smi.parse_banner(plain.value.out)
    if plain.value.rc == 0:
        facts.driver_versions = [version] if version else []
        text = answer.value.out if answer.is_present else plain.value.out
        facts.problem = Problem("nvidia-smi prints what nobody can parse: %.200r" % text, "", "", certain=False)
    elif plain.value.rc != 127:
        reason, why, fix = nvidia_smi.explain_failure(plain.value.rc, plain.value.out, plain.value.err)
        facts.problem = Problem(reason, why, fix, certain=bool(why or fix))


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
    facts.visible_text = text.value
    facts.selection = chosen = visible.select(text.value, facts.devices)
    for device in facts.devices:
        device.visible = device.index in chosen.indexes
        named = [part for part in device.partitions if part[1] in chosen.partitions]
        if named:
            device.partitions = named[:1]  # a process sees one MIG slice, even if several are named
            device.memory_bytes = named[0][2]


def library(view: HostView, soname: str) -> Fact:
    """Real path of a driver library as a program would load it: LD_LIBRARY_PATH, then where drivers put it.

    Stubs are passed over: they carry the name and no driver.
    """
    own = [folder for folder in view.env_text("LD_LIBRARY_PATH").split(":") if folder.startswith("/")]
    folders = [folder.rstrip("/") for folder in own if "/stubs" not in folder] + list(LIBRARY_FOLDERS)
    doubt = ""
    for folder in folders:
        path = "%s/%s" % (folder, soname)
        fact = view.real(path)
        if fact.is_present and "/stubs/" not in fact.value:
            return present(fact.value, path)
        if fact.is_present:
            continue
        if fact.is_unknown:
            # a link whose target nobody recorded still names the version
            target = view.link(path)
            if target.is_present:
                return present("%s/%s" % (folder, target.value.rpartition("/")[2]), path)
            doubt = doubt or fact.reason
    return unknown(doubt, soname) if doubt else absent(soname)


def library_version(path: str) -> str:
    """``/usr/lib/libcuda.so.580.126.09`` -> ``580.126.09``; an empty string for a plain soname."""
    tail = path.rpartition(".so.")[2]
    return tail if "." in tail and tail[0].isdigit() else ""
