"""Huawei Ascend NPUs and their driver: sysfs and /dev first, then npu-smi."""

from __future__ import annotations

from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.facts.arch import soc_name
from deepinfer.probes.facts.pci import PciDevice, normal_address
from deepinfer.probes.view import HostView, key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.facts.npu_smi import Row

INSTALL_INFO = "/etc/ascend_install.info"
DRIVER_ROOT = "/usr/local/Ascend"
TWO_DIES = "Ascend910_93"  # A3: npu-smi names it Ascend910 and lists two dies a card


class AscendFacts:
    """``devices`` and what is known of the driver. ``problem`` is (reason, fix) where npu-smi did not answer."""

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.on_bus: list[PciDevice] = []
        self.signs: list[str] = []
        self.nodes: Fact = absent("/dev")
        self.driver = absent(DRIVER_ROOT)  # version text
        self.answered_by = ""
        self.problem: tuple[str, str] | None = None
        self.certain = True  # False: silence only, the problem may not be one
        self.mismatched = False  # a board page says that driver and firmware do not belong together
        self.visible_text: str | None = None


def collect(view: HostView, bus: Fact) -> AscendFacts:
    """``bus``: the answer of :func:`deepinfer.probes.facts.pci.accelerators`."""
    facts = AscendFacts()
    facts.on_bus = [device for device in bus.value or [] if device.vendor == "ascend"]
    facts.nodes = _nodes(view)
    numbered = [name for name in facts.nodes.value or [] if name[len("davinci") :].isdigit()]
    facts.signs = (["PCI"] if facts.on_bus else []) + (["/dev"] if numbered else [])
    looked = not bus.is_unknown or not facts.nodes.is_unknown
    if not facts.signs and looked:
        return facts
    facts.driver = _driver(view)
    _ask_tool(view, facts)
    _merge_bus(facts, len(numbered))
    text = view.env("ASCEND_RT_VISIBLE_DEVICES")
    if text.is_present:
        facts.visible_text = text.value
        wanted = [word.strip() for word in text.value.split(",")]
        for device in facts.devices:
            device.visible = str(device.index) in wanted
    return facts


def _nodes(view: HostView) -> Fact:
    listing = view.names("/dev")
    if listing.is_present:
        return present([name for name in listing.value if name.startswith(("davinci", "hisi_hdc"))], "/dev")
    if listing.is_absent:
        return listing
    found = [name for name in ("davinci0", "davinci_manager", "hisi_hdc") if view.exists("/dev/" + name).is_present]
    return present(found, "/dev") if found else unknown(listing.reason, "/dev")


def _driver(view: HostView) -> Fact:
    info = view.read(INSTALL_INFO)
    root = key_values(info.value).get("Driver_Install_Path_Param", "") if info.is_present else ""
    path = (root or DRIVER_ROOT).rstrip("/") + "/driver/version.info"
    text = view.read(path)
    if not text.is_present:
        return text
    values = key_values(text.value)
    # Some 26.x files carry the HAL's number under Version; package_version is right in all.
    version = values.get("package_version") or values.get("Version") or ""
    return present(version, path) if version else unknown("no version in %s" % path, path)


def _ask_tool(view: HostView, facts: AscendFacts) -> None:
    from deepinfer.probes.facts import npu_smi
    from deepinfer.probes.facts.device import Device

    answer = view.run(["npu-smi", "info"])
    if answer.is_absent:
        return
    if answer.is_unknown:
        facts.problem = ("npu-smi: %s" % answer.reason, "reboot the host, or read: dmesg | grep -i davinci")
        facts.certain = False
        return
    text = answer.value.out + "\n" + answer.value.err
    rows = _rows(view, answer.value.out) if answer.value.rc == 0 else None
    if rows is None and answer.value.rc != 0:
        facts.problem = npu_smi.explain_failure(answer.value.rc, text)
        return
    if rows is None:
        from deepinfer.probes.redact import excerpt

        facts.problem = ("npu-smi prints what nobody can parse: %r" % excerpt(answer.value.out), "run npu-smi info")
        facts.certain = False
        return
    facts.answered_by = "npu-smi"
    version = npu_smi.parse_version(answer.value.out)
    if version and not facts.driver.is_present:
        facts.driver = present(version, "npu-smi")
    names: dict[str, str] = {}
    dies = {row.npu: sum(1 for other in rows if other.npu == row.npu) for row in rows}
    for index, row in enumerate(rows):
        device = Device("ascend", index)
        if row.name not in names:
            names[row.name] = _soc(view, facts, row)
        device.exposed = True
        device.dies = dies[row.npu]
        device.name = row.name
        device.pci = normal_address(row.bus)
        device.memory_bytes = row.memory_bytes
        device.arch, device.identity_source = _identity(row.name, names[row.name], device.dies)
        facts.devices.append(device)


def _rows(view: HostView, table: str) -> list[Row] | None:
    """The chips of the table, or of the mapping page where nobody can parse the table."""
    from deepinfer.probes.facts import npu_smi

    rows = npu_smi.parse_info(table)
    if rows is None:
        mapping = view.run(["npu-smi", "info", "-m"])
        if mapping.is_present and mapping.value.rc == 0:
            rows = npu_smi.rows_of_mapping(mapping.value.out) or None
    return rows


def _soc(view: HostView, facts: AscendFacts, row: Row) -> str:
    """SoC name from the board page; first without ``-c``, which 950 rejects, then with it, which 910 needs."""
    from deepinfer.probes.facts import npu_smi

    words = ["npu-smi", "info", "-t", "board", "-i", str(row.npu)]
    for extra in ([],) if soc_name(row.name).startswith("ascend950") else ([], ["-c", "0"]):
        answer = view.run(words + extra)
        if answer.is_present and answer.value.rc == 0:
            facts.mismatched = facts.mismatched or npu_smi.mismatched(answer.value.out)
            soc = npu_smi.soc_of_board(answer.value.out)
            if soc:
                return soc
    return ""


def _identity(name: str, soc: str, dies: int) -> tuple[str, str]:
    """(SoC name, source). The table's short names get the prefix that every other source uses."""
    if soc:
        return soc, "npu-smi board"
    if name == "Ascend910":
        return (TWO_DIES, "npu-smi, two dies a card") if dies == 2 else ("", "")
    return name if name.startswith("Ascend") else "Ascend" + name, "npu-smi"


def _merge_bus(facts: AscendFacts, nodes: int) -> None:
    by_address = {device.address: device for device in facts.on_bus}
    for device in facts.devices:
        found = by_address.get(device.pci)
        if found:
            device.pci_id, device.pci_driver = found.id, found.driver
    if facts.devices:
        return
    from deepinfer.probes.facts.device import Device

    for index, on_bus in enumerate(facts.on_bus):
        device = Device("ascend", index)
        device.pci, device.pci_id, device.pci_driver = on_bus.address, on_bus.id, on_bus.driver
        device.exposed = None if facts.nodes.is_unknown else index < nodes
        facts.devices.append(device)
    for index in range(len(facts.devices), nodes if not facts.on_bus else 0):
        device = Device("ascend", index)  # a node without a bus entry: an NPU whose kind nobody named
        device.exposed = True
        facts.devices.append(device)
