"""Checks of kind ``driver``: the kernel module, its version, its libraries, and whether it answers."""

from __future__ import annotations

from deepinfer.matrix.index import allows
from deepinfer.probes.check import FAIL, PASS, UNKNOWN, WARN, Case, Finding, check
from deepinfer.probes.facts.nvidia_library import library, library_version
from deepinfer.probes.facts.versions import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.fact import Fact

_INSTALL = "install the NVIDIA driver (open kernel module): https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"


@check("driver.module", aspects=("run",))
def module(case: Case) -> Finding:
    """The vendor's driver is installed and its kernel module is loaded."""
    if case.vendor == "ascend":
        fact = case.facts.ascend.driver
        if fact.is_present or case.facts.ascend.answered_by:
            return Finding(PASS, fact.value or "answers", where=fact.source)
        outcome = UNKNOWN if fact.is_unknown else FAIL
        fix = "install the Ascend HDK driver, or mount /usr/local/Ascend/driver into the container"
        return Finding(outcome, fact.reason or "no driver", needed="Ascend driver", where=fact.source, fix=fix)
    facts = case.facts.nvidia
    if facts.kernel.is_present:
        return Finding(PASS, facts.kernel.value, where=facts.kernel.source)
    if facts.answered_by:  # WSL and sealed containers have no such file
        return Finding(PASS, facts.driver_version or "answers", where=facts.answered_by)
    if facts.kernel.is_unknown:
        return Finding(UNKNOWN, facts.kernel.reason, where=facts.kernel.source, fix="run the probe on the host itself")
    held = sorted({device.pci_driver for device in case.devices if device.pci_driver})
    return Finding(
        FAIL,
        "no kernel module loaded" + (" (the devices belong to %s)" % ", ".join(held) if held else ""),
        needed="NVIDIA driver",
        where=facts.kernel.source,
        fix=_INSTALL,
    )


@check("driver.version", aspects=("run",), vendors=("nvidia",))
def version(case: Case) -> Finding | None:
    """The driver is new enough for code of the toolkit's major version. An older minor version is fine."""
    spec = case.entry["require"]["driver"]
    facts = case.facts.nvidia
    text = facts.driver_version
    if spec is None or (not text and not facts.answered_by):
        return None  # driver.module or driver.answers says why there is none
    if len(facts.driver_versions) > 1:
        return Finding(
            FAIL, "versions differ: " + ", ".join(facts.driver_versions), needed=spec["text"], fix="reboot the host"
        )
    found = parse(text)
    where = facts.kernel.source if facts.kernel.is_present else facts.answered_by
    if found is None:
        return Finding(UNKNOWN, "no version in %.40r" % text, needed=spec["text"], where=where, fix="run nvidia-smi")
    cuda = " (CUDA %d.%d)" % facts.cuda_version if facts.cuda_version else ""
    if allows(spec, found.head):
        kit = case.toolchain.cuda
        if (
            kit
            and facts.cuda_version
            and facts.cuda_version[:1] == kit.version[:1]
            and kit.version > facts.cuda_version
        ):
            return Finding(
                WARN,
                text + cuda,
                needed=spec["text"],
                where=where,
                why="code compiled by %s runs on it; PTX of that toolkit does not, if something compiles at run time"
                % kit.label,
                fix="upgrade the driver to the release of that toolkit, if anything here compiles at run time",
            )
        return Finding(PASS, text + cuda, needed=spec["text"], where=where)
    return Finding(
        FAIL,
        text + cuda,
        needed=spec["text"],
        where=where,
        why="code of a newer major CUDA version does not load on this driver; compiling is not affected",
        fix="upgrade the driver to %s or newer" % spec["text"].lstrip(">="),
    )


@check("driver.answers", aspects=("run",))
def answers(case: Case) -> Finding | None:
    """The driver answers questions: NVML or the vendor's tool, within its time."""
    if case.vendor == "ascend":
        ascend = case.facts.ascend
        if ascend.problem:
            return Finding(FAIL if ascend.certain else UNKNOWN, ascend.problem[0], fix=ascend.problem[1])
        if ascend.answered_by:
            return Finding(PASS, ascend.answered_by)
        return Finding(
            WARN, "npu-smi is not here; the device is known by its PCI id", fix="mount /usr/local/bin/npu-smi"
        )
    facts = case.facts.nvidia
    if facts.problem:
        outcome = FAIL if facts.problem.certain else UNKNOWN
        return Finding(outcome, facts.problem.reason, why=facts.problem.why, fix=facts.problem.fix or "run nvidia-smi")
    if facts.answered_by:
        return Finding(PASS, facts.answered_by)
    if not facts.kernel.is_present or not any(device.exposed for device in case.devices):
        return None  # driver.module or exposure.nodes says why
    return Finding(
        UNKNOWN,
        "neither NVML nor nvidia-smi is here",
        fix="run the probe where nvidia-smi works: docker run --gpus all ...",
    )


@check("driver.libraries", aspects=("run",), vendors=("nvidia",))
def libraries(case: Case) -> Finding | None:
    """libcuda.so.1 is there and of the kernel module's version, to the last digit.

    A copy in a ``compat`` folder may be newer than the kernel module (forward compatibility), never older.
    """
    facts = case.facts.nvidia
    if facts.wsl or not facts.kernel.is_present or not any(device.exposed for device in case.devices):
        return None
    kernel = parse(facts.kernel.value)
    doubt: Finding | None = None
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        fact = library(case.view, soname)
        if fact.is_absent and not facts.answered_by:
            return Finding(
                FAIL,
                "no %s" % soname,
                needed="the driver's libraries",
                why="the container runtime mounts them",
                fix="start the container with: docker run --gpus all ...",
            )
        if not fact.is_present:
            if not facts.answered_by or soname == "libcuda.so.1":  # what answered has loaded the other one
                doubt = doubt or _not_seen(case, soname, fact)
            continue
        own = parse(library_version(fact.value))
        if own is None or kernel is None or own.head == kernel.head:
            continue
        if "/compat" in fact.value and own.head > kernel.head:
            return Finding(
                WARN,
                "%s (forward compatibility)" % case.view.shown(fact.value),
                needed=kernel.text,
                fix="upgrade the driver to %s" % own.text,
            )
        return Finding(
            FAIL,
            "%s is %s, the kernel module is %s" % (soname, own.text, kernel.text),
            needed="one version",
            where=fact.value,
            why="CUDA ends with error 803 or 'driver/library version mismatch'",
            fix="reboot after a driver upgrade, and take foreign folders out of LD_LIBRARY_PATH",
        )
    return doubt or Finding(PASS, facts.kernel.value)


def _not_seen(case: Case, soname: str, fact: Fact) -> Finding:
    """A library that is not where libraries lie: the loader may know better, so that alone stops nobody."""
    fix = "run: ldconfig -p | grep libcuda"
    if case.facts.in_container():
        fix = "start the container with: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
    outcome = WARN if case.facts.nvidia.answered_by else UNKNOWN
    found = fact.reason or "no %s in the usual folders" % soname
    return Finding(outcome, found, needed="the driver's libraries", where=soname, fix=fix)
