"""Asks NVML through ctypes and prints its raw answers as one JSON object. Run as a child, never imported.

A child, because a library call into a driver that hangs cannot be bounded in-process, and because ctypes and the
driver's memory then never belong to the probe. It must stand alone: no import of this project. Each call is kept as
``name`` or ``name(index)`` -> ``[return code, value]``; the probe interprets them, so an old record can be read anew.
NVML creates no CUDA context and changes nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

SONAME = "libnvidia-ml.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)
INIT_FLAG_NO_GPUS = 1  # nvmlInitWithFlags: succeed although some GPU does not answer
NOT_FOUND_IN_LIBRARY = 13  # NVML_ERROR_FUNCTION_NOT_FOUND: our word for "this driver has no such call"


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t (nvml.h)."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Memory(ctypes.Structure):
    """nvmlMemory_t (nvml.h), bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfoV_t, version 2 (nvml.h)."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("cluster_uuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique_id", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health_mask", ctypes.c_uint),
    ]


def load() -> tuple[ctypes.CDLL | None, str, list[str]]:
    """The library, from the loader's own places first, then from where drivers are known to lie.

    Also what kept a library that is there from loading: that is not a missing library.
    """
    broken: list[str] = []
    for path in [SONAME] + [os.path.join(folder, SONAME) for folder in FOLDERS]:
        if path != SONAME and not os.path.exists(path):
            continue
        try:
            return ctypes.CDLL(path), path, broken
        except OSError as error:
            if path != SONAME or not str(error).startswith(SONAME + ": cannot open shared object file"):
                broken.append(str(error))
    return None, "", broken


class Reader:
    """Calls by name and keeps every return code with its value."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.calls: dict[str, list[Any]] = {}

    def call(self, name: str, label: str, value: Callable[[], Any], *arguments: Any) -> tuple[int, Any]:
        function = getattr(self.library, name, None)
        code = NOT_FOUND_IN_LIBRARY if function is None else function(*arguments)
        result = value() if code == 0 else None
        self.calls[label] = [code, result]
        return code, result

    def text(self, name: str, label: str, size: int, *arguments: Any) -> tuple[int, Any]:
        buffer = ctypes.create_string_buffer(size)
        return self.call(name, label, lambda: buffer.value.decode("utf-8", "replace"), *arguments, buffer, size)

    def number(self, name: str, label: str, *arguments: Any, kind: Any = ctypes.c_uint) -> tuple[int, Any]:
        holder = kind()
        return self.call(name, label, lambda: holder.value, *arguments, ctypes.byref(holder))

    def pair(self, name: str, label: str, *arguments: Any) -> tuple[int, Any]:
        first, second = ctypes.c_int(), ctypes.c_int()
        both = (ctypes.byref(first), ctypes.byref(second))
        return self.call(name, label, lambda: [first.value, second.value], *arguments, *both)


def read_device(reader: Reader, index: int) -> None:
    handle = ctypes.c_void_p()
    code, _ = reader.call(
        "nvmlDeviceGetHandleByIndex_v2", "handle(%d)" % index, lambda: True, index, ctypes.byref(handle)
    )
    if code != 0:
        return
    reader.text("nvmlDeviceGetName", "name(%d)" % index, 96, handle)
    reader.text("nvmlDeviceGetUUID", "uuid(%d)" % index, 96, handle)
    reader.pair("nvmlDeviceGetCudaComputeCapability", "compute_capability(%d)" % index, handle)
    memory = Memory()
    reader.call(
        "nvmlDeviceGetMemoryInfo", "memory_total(%d)" % index, lambda: memory.total, handle, ctypes.byref(memory)
    )
    pci = PciInfo()
    reader.call(
        "nvmlDeviceGetPciInfo_v3",
        "pci(%d)" % index,
        lambda: [pci.bus_id.decode("ascii", "replace"), pci.pci_device_id],
        handle,
        ctypes.byref(pci),
    )
    reader.number("nvmlDeviceGetMinorNumber", "minor(%d)" % index, handle)
    code, modes = reader.pair("nvmlDeviceGetMigMode", "mig_mode(%d)" % index, handle)
    if code == 0 and modes[0]:
        read_partitions(reader, index, handle)
    read_fabric(reader, index, handle)


def read_partitions(reader: Reader, index: int, handle: ctypes.c_void_p) -> None:
    code, count = reader.number("nvmlDeviceGetMaxMigDeviceCount", "mig_max(%d)" % index, handle)
    for slot in range(count if code == 0 else 0):
        part = ctypes.c_void_p()
        label = "%d,%d" % (index, slot)
        arguments = (handle, slot, ctypes.byref(part))
        code, _ = reader.call("nvmlDeviceGetMigDeviceHandleByIndex", "mig_handle(%s)" % label, lambda: True, *arguments)
        if code != 0:
            continue
        reader.text("nvmlDeviceGetName", "mig_name(%s)" % label, 96, part)
        reader.text("nvmlDeviceGetUUID", "mig_uuid(%s)" % label, 96, part)
        memory = Memory()
        total = lambda memory=memory: memory.total  # noqa: E731
        reader.call("nvmlDeviceGetMemoryInfo", "mig_memory_total(%s)" % label, total, part, ctypes.byref(memory))


def read_fabric(reader: Reader, index: int, handle: ctypes.c_void_p) -> None:
    info = FabricInfo()
    info.version = ctypes.sizeof(FabricInfo) | (2 << 24)  # NVML_STRUCT_VERSION(GpuFabricInfo, 2)

    def values() -> list[Any]:
        return [info.state, info.status, info.clique_id, any(info.cluster_uuid)]

    reader.call("nvmlDeviceGetGpuFabricInfoV", "fabric(%d)" % index, values, handle, ctypes.byref(info))


def main() -> None:
    library, path, broken = load()
    if library is None:
        print(json.dumps({"missing": not broken, "broken": broken[:4]}))
        return
    reader = Reader(library)
    code, _ = reader.call("nvmlInitWithFlags", "init", lambda: True, INIT_FLAG_NO_GPUS)
    if code == NOT_FOUND_IN_LIBRARY:
        code, _ = reader.call("nvmlInit_v2", "init", lambda: True)
    if code == 0:
        reader.text("nvmlSystemGetDriverVersion", "driver_version", 80)
        reader.number("nvmlSystemGetCudaDriverVersion_v2", "cuda_version", kind=ctypes.c_int)
        code, count = reader.number("nvmlDeviceGetCount_v2", "count")
        for index in range(count if code == 0 else 0):
            read_device(reader, index)
        library.nvmlShutdown()
    print(json.dumps({"path": path, "calls": reader.calls}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a driver library may hang in its own exit handlers
