"""Meaning of the raw answers that nvml_reader.py prints."""

from __future__ import annotations

from deepinfer.probes.facts.device import Device
from deepinfer.probes.facts.pci import normal_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUCCESS = 0
# nvmlReturn_t -> (reason, fix): what a user can do about it (nvml.h)
ERRORS = {
    4: ("no permission for the device nodes", "start the container with GPU access (--gpus all)"),
    9: ("the kernel module is not loaded", "sudo modprobe nvidia   (and read: dmesg | grep -i nvrm)"),
    15: ("a GPU fell off the bus", "reboot the host and read: dmesg | grep -i xid"),
    16: ("a GPU needs a reset", "reboot the host"),
    17: ("the operating system or a control group blocks the driver", "restart the container with GPU access"),
    18: ("driver library and kernel module differ", "reboot, or unload and reload the nvidia kernel modules"),
    999: ("the driver answers 'unknown error'", "restart the container: a control group may have lost its devices"),
}
_FABRIC_STATE = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}


class Answers:
    """The ``calls`` of one document, tolerant of anything that a damaged record may hold."""

    def __init__(self, document: dict[str, Any]) -> None:
        calls = document.get("calls")
        self.calls = calls if isinstance(calls, dict) else {}

    def code(self, label: str) -> int | None:
        answer = self.calls.get(label)
        if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], int):
            return answer[0]
        return None

    def value(self, label: str, kind: type) -> Any:
        """The value if the call succeeded and has the type that it must have, else None."""
        if self.code(label) != SUCCESS:
            return None
        value = self.calls[label][1]
        return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else None


def devices(answers: Answers) -> list[Device]:
    """The devices that NVML lists, in its order (PCI order)."""
    count = answers.value("count", int) or 0
    return [_device(answers, index) for index in range(min(count, 1024))]


def _device(answers: Answers, index: int) -> Device:
    device = Device("nvidia", index)
    device.exposed = answers.code("handle(%d)" % index) == SUCCESS
    device.name = answers.value("name(%d)" % index, str) or ""
    device.uuid = answers.value("uuid(%d)" % index, str) or ""
    device.memory_bytes = answers.value("memory_total(%d)" % index, int)
    pair = answers.value("compute_capability(%d)" % index, list)
    if pair and len(pair) == 2 and all(isinstance(part, int) for part in pair):
        device.arch = "%d.%d" % tuple(pair)
        device.identity_source = "nvml"
    pci = answers.value("pci(%d)" % index, list)
    if pci and len(pci) == 2 and isinstance(pci[0], str) and isinstance(pci[1], int):
        device.pci = normal_address(pci[0])
        device.pci_id = "%04x:%04x" % (pci[1] & 0xFFFF, pci[1] >> 16)
    modes = answers.value("mig_mode(%d)" % index, list)
    if modes:
        device.partitioned = modes[0] == 1
    elif answers.code("mig_mode(%d)" % index) is not None:
        device.partitioned = False  # the call says that this GPU has no such mode
    if device.partitioned:
        device.partitions = _partitions(answers, index)
        # a process sees the first slice unless a variable names another, and never the memory of the whole
        device.memory_bytes = device.partitions[0][2] if device.partitions else None
    fabric = answers.value("fabric(%d)" % index, list)
    if fabric and len(fabric) == 4:
        state = _FABRIC_STATE.get(fabric[0], "state %s" % fabric[0])
        device.fabric = (state, "Success" if fabric[1] == SUCCESS else "error %s" % fabric[1])
    return device


def _partitions(answers: Answers, index: int) -> list[tuple[str, str, int | None]]:
    parts = []
    for slot in range(min(answers.value("mig_max(%d)" % index, int) or 0, 64)):
        label = "%d,%d" % (index, slot)
        if answers.code("mig_handle(%s)" % label) != SUCCESS:
            continue
        name = answers.value("mig_name(%s)" % label, str) or "MIG"
        uuid = answers.value("mig_uuid(%s)" % label, str) or ""
        parts.append((name.rpartition("MIG ")[2], uuid, answers.value("mig_memory_total(%s)" % label, int)))
    return parts
