"""Parsers of nvidia-smi's output: the CSV query by its header, the banner in both dialects, ``-L`` and ``-q``.

Text is the last resort. What cannot be parsed is said to be so, with the first bytes; it is never "no GPU".
"""

from __future__ import annotations

import re

from deepinfer.probes.facts.versions import whole_number
from deepinfer.probes.redact import excerpt

_BANNER_DRIVER = r"(?:Driver|KMD) Version:\s*(\d+(?:\.\d+)+)"  # R610 renamed both fields
_BANNER_CUDA = r"CUDA(?: UMD)? Version:\s*(\d{1,4})\.(\d{1,4})"
_LIST_GPU = r"^GPU (\d{1,5}): (.*?) \(UUID: (GPU-[^)]+)\)"
_LIST_MIG = r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)"
_NO_VALUE = ("", "n/a", "[n/a]", "not supported", "[not supported]", "unknown", "[unknown]", "unknown error")

COLUMNS = "index,name,uuid,compute_cap,memory.total,driver_version,pci.bus_id,mig.mode.current"
OLD_COLUMNS = "index,name,uuid,memory.total,driver_version,pci.bus_id"  # drivers before R510 know no compute_cap


def query(columns: str) -> list[str]:
    """The command that asks for ``columns``."""
    return ["nvidia-smi", "--query-gpu=" + columns, "--format=csv"]


def parse_csv(text: str) -> list[dict[str, str]] | None:
    """Rows by column name without its unit; values that mean "none" become empty. None if there is no such header."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    names = [name.split("[")[0].strip() for name in lines[0].split(",")]
    if "index" not in names or "name" not in names:
        return None
    rows = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names) or whole_number(cells[names.index("index")]) is None:
            return None
        rows.append({name: "" if cell.lower() in _NO_VALUE else cell for name, cell in zip(names, cells)})
    return rows


def mebibytes(cell: str) -> int | None:
    """``143771 MiB`` -> bytes. Unified-memory parts print no number."""
    word = cell.split(" ")[0]
    number = whole_number(word)
    return None if number is None else number << 20


def parse_banner(text: str) -> tuple[str, tuple[int, int] | None]:
    """(driver version, highest CUDA version of the driver); an empty string and None where not found."""
    driver, cuda = re.search(_BANNER_DRIVER, text), re.search(_BANNER_CUDA, text)
    return driver.group(1) if driver else "", (int(cuda.group(1)), int(cuda.group(2))) if cuda else None


def parse_list(text: str) -> dict[int, list[tuple[str, str]]]:
    """GPU index -> (profile, UUID) of its MIG slices, from ``nvidia-smi -L``."""
    slices: dict[int, list[tuple[str, str]]] = {}
    current = -1
    for line in text.splitlines():
        gpu, part = re.match(_LIST_GPU, line), re.match(_LIST_MIG, line)
        if gpu:
            current = int(gpu.group(1))
            slices[current] = []
        elif part and current >= 0:
            slices[current].append((part.group(1), part.group(3)))
    return slices


def parse_fabric(text: str) -> list[tuple[str, str]]:
    """(State, Status) of each GPU's Fabric section in ``nvidia-smi -q``."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() != "Fabric":
            continue
        values: dict[str, str] = {}
        for follower in lines[number + 1 : number + 5]:
            key, mark, value = follower.partition(":")
            if mark:
                values.setdefault(key.strip(), value.strip())
        if "State" in values:
            found.append((values["State"], values.get("Status", "N/A")))
    return found


def explain_failure(rc: int, out: str, err: str) -> tuple[str, str, str]:
    """(reason, why, fix) of a failing nvidia-smi; the reason is an empty string for texts that nobody has listed."""
    text = (out + "\n" + err).strip()
    lowered = text.lower()
    for needle, reason, why, fix in _FAILURES:
        if needle in lowered:
            return reason, why, fix
    return "nvidia-smi ended with %d: %s" % (rc, excerpt(text)), "", "run nvidia-smi and read its message"


_FAILURES = (
    (
        "driver/library version mismatch",
        "driver library and kernel module differ",
        "the user-space driver was upgraded while the old kernel module stayed loaded",
        "reboot, or unload and reload the nvidia kernel modules",
    ),
    (
        "couldn't communicate with the nvidia driver",
        "the kernel module does not answer",
        "it is not loaded: not rebuilt for this kernel, blocked by Secure Boot, or nouveau holds the device",
        "sudo modprobe nvidia   (and read: dmesg | grep -i nvrm)",
    ),
    (
        "no devices were found",
        "the driver is loaded and finds no usable GPU",
        "a GPU fell off the bus, or the proprietary module met a GPU that needs the open one",
        "read: dmesg | grep -i -e nvrm -e xid",
    ),
    (
        "insufficient permissions",
        "no permission for the device nodes",
        "",
        "start the container with GPU access (--gpus all), or join the group that owns /dev/nvidia*",
    ),
    (
        "couldn't find libnvidia-ml.so",
        "the driver library is not in this image",
        "the container runtime mounts it",
        "start the container with: docker run --gpus all ...",
    ),
    ("gpu is lost", "a GPU fell off the bus", "", "reboot the host and read: dmesg | grep -i xid"),
    (
        "unable to determine the device handle",
        "a GPU does not answer",
        "it fell off the bus or is in reset",
        "reboot the host and read: dmesg | grep -i xid",
    ),
)
