"""What the NVIDIA runtime itself says: NVML first, nvidia-smi where NVML is not to be had."""

from __future__ import annotations

from deepinfer.probes.fact import Fact
from deepinfer.probes.facts import nvidia_smi, nvml
from deepinfer.probes.facts.device import Device
from deepinfer.probes.facts.nvidia import NvidiaFacts, Problem
from deepinfer.probes.facts.pci import normal_address
from deepinfer.probes.redact import excerpt
from deepinfer.probes.view import HostView

_HANG_FIX = "reboot the host: the driver hangs (read: dmesg | grep -i -e nvrm -e xid)"
_LIBRARY_FIX = "reinstall the driver's user-space libraries, or restart the container with GPU access"


def ask(view: HostView, facts: NvidiaFacts) -> None:
    """Fill in devices, versions and problems."""
    if not _ask_nvml(view, facts):
        _ask_tool(view, facts)


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
            facts.problem = Problem(
                "the driver library cannot be loaded", excerpt(str(broken[0])), _LIBRARY_FIX, certain=True
            )
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
            facts.problem = _unparsed(answer.value.out)
        return
    version, facts.cuda_version = nvidia_smi.parse_banner(plain.value.out)
    if plain.value.rc == 0:
        facts.driver_versions = [version] if version else []
        text = answer.value.out if answer.is_present else plain.value.out
        facts.problem = _unparsed(text)
    elif plain.value.rc != 127:
        reason, why, fix = nvidia_smi.explain_failure(plain.value.rc, plain.value.out, plain.value.err)
        facts.problem = Problem(reason, why, fix, certain=bool(why or fix))


def _unparsed(text: str) -> Problem:
    return Problem("nvidia-smi prints what nobody can parse: %r" % excerpt(text), "", "", certain=False)
