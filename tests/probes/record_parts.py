"""Pieces of recorded hosts: PCI functions, CUDA roots, tables of npu-smi, answers of commands."""

from __future__ import annotations

import copy
from typing import Any

HEADER = "index, name, uuid, compute_cap, memory.total [MiB], driver_version, pci.bus_id, mig.mode.current"
QUERY = "nvidia-smi --query-gpu=%s --format=csv" % HEADER.replace(", ", ",").replace(" [MiB]", "")
LISTED = [
    "/dev",
    "/etc",
    "/opt",
    "/proc/driver",
    "/sys/bus/pci/devices",
    "/sys/bus/ub/devices",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
]
CUDA_ARCHS = "75 80 86 87 88 89 90 100 110 103 120 121"
GPP = "g++ -E -P -x c++ -"
CANN = "/usr/local/Ascend/cann-9.2.0"
PYTHON = {
    "version": "3.12.3",
    "implementation": "cpython",
    "headers": True,
    "site_packages": "/usr/lib/python3/dist-packages",
}
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\n'
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'


def uuid(number: int) -> str:
    return "00000000-0000-0000-0000-%012x" % number


def say(out: str = "", rc: int | None = 0, err: str = "") -> dict[str, Any]:
    """The answer of a command."""
    return {"rc": rc, "out": out, "err": err}


def gcc(version: str, *, machine: str = "") -> dict[str, Any]:
    """What the preprocessor of GCC answers."""
    tail = {"": "", "x86_64": " 1 __aarch64__", "aarch64": " __x86_64__ 1", "other": " __x86_64__ __aarch64__"}[machine]
    words = version.replace(".", " ")
    return say('%s __clang_major__ __clang_minor__ __INTEL_LLVM_COMPILER "%s"%s\n' % (words, version, tail))


def pci(address: str, identity: str, klass: str = "0x030200", driver: str = "nvidia") -> dict[str, str]:
    """Files of one PCI function; ``identity`` is vendor:device."""
    base = "/sys/bus/pci/devices/%s/" % address
    vendor, device = identity.split(":")
    files = {base + "vendor": "0x%s\n" % vendor, base + "device": "0x%s\n" % device, base + "class": klass + "\n"}
    if driver:
        files[base + "driver"] = "-> ../../../../bus/pci/drivers/" + driver
    return files


def cuda_root(
    root: str,
    version: str = "13.0.88",
    archs: str = CUDA_ARCHS,
    max_gcc: int = 15,
    *,
    header: str = "",
    leave_out: tuple[str, ...] = (),
) -> tuple[dict[str, str], dict[str, Any]]:
    """Files and commands of a CUDA toolkit. ``header``: the version that cuda.h names, if it is another."""
    major, minor = (header or version).split(".")[:2]
    include = root + "/targets/x86_64-linux/include"
    files = {
        root + "/bin/nvcc": "<exe>",
        include + "/cuda.h": "#define CUDA_VERSION %d\n" % (int(major) * 1000 + int(minor) * 10),
        include + "/crt/host_config.h": "#if __GNUC__ > %d\n" % max_gcc,
    }
    release = ".".join(version.split(".")[:2])
    told = "Cuda compilation tools, release %s, V%s\nBuild cuda_%s.r%s/compiler.38244171_0\n" % (
        release,
        version,
        release,
        release,
    )
    cmds = {
        root + "/bin/nvcc --version": say("nvcc: NVIDIA (R) Cuda compiler driver\n" + told),
        root + "/bin/nvcc --list-gpu-arch": say("".join("compute_%s\n" % arch for arch in archs.split())),
    }
    if leave_out:
        files = {path: text for path, text in files.items() if not path.endswith(leave_out)}
        cmds = {words: answer for words, answer in cmds.items() if words.split(" ")[0] in files}
    return files, cmds


def gpu_row(index: int, name: str, cc: str, memory: str, driver: str, mig: str) -> str:
    return "%d, %s, GPU-%s, %s, %s, %s, 00000000:%02X:00.0, %s" % (
        index,
        name,
        uuid(index + 1),
        cc,
        memory,
        driver,
        0x10 + index,
        mig,
    )


def npu_table(
    chips: list[tuple[int, str]], *, separate: bool = True, hbm: int = 131072, version: str = "25.7.rc1.6"
) -> str:
    """``npu-smi info``: with the NPU id in its own column (950) or before the name (910)."""
    lines = ["+---+", "| npu-smi %s    Version: %s   |" % (version, version), "+---+"]
    if separate:
        lines += ["| NPU ID | Name | Health | Power(W) |", "|   |   | Bus-Id | HBM-Usage(MB) |", "+===+"]
    else:
        lines += ["| NPU   Name | Health | Power(W) |", "| Chip | Bus-Id | HBM-Usage(MB) |", "+===+"]
    for place, (npu, name) in enumerate(chips):
        bus = "0000:%02X:00.0" % (0x60 + place)
        first = "| %d      | %s " % (npu, name) if separate else "| %d     %s " % (npu, name)
        lines.append(first + "| OK            | 195.6       56                0     / 0             |")
        lines.append(
            ("|   |   | %s" if separate else "| 0  | %s") % bus + "  | 0     0    / 0       5239  / %d |" % hbm
        )
        lines.append("+===+")
    return "\n".join(lines) + "\n"


def changed(record: dict[str, Any], env: Any, files: Any, cmds: Any) -> dict[str, Any]:
    for key, changes in (("env", env), ("files", files), ("cmds", cmds)):
        for name, value in (changes or {}).items():
            if value is None:
                record[key].pop(name, None)
            else:
                record[key][name] = value
    return record


def without(record: dict[str, Any], *beginnings: str) -> dict[str, Any]:
    """A copy of ``record`` with no file, node, command or listed folder that begins with one of ``beginnings``."""
    record = copy.deepcopy(record)
    for key in ("files", "cmds"):
        record[key] = {name: value for name, value in record[key].items() if not name.startswith(beginnings)}
    for key in ("dev", "listed"):
        record[key] = [name for name in record[key] if not name.startswith(beginnings)]
    return record
