"""Checks of kind ``readiness``: small things without which a device that is there does not start."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, PASS, WARN, Case, Finding, check


@check("readiness.open_module", aspects=("run",), vendors=("nvidia",))
def open_module(case: Case) -> Finding | None:
    """The kernel module is the open one: the proprietary one does not drive these devices."""
    kernel = case.facts.nvidia
    if kernel.open_module is None:
        return None
    if kernel.open_module:
        return Finding(PASS, "open kernel module")
    return Finding(
        FAIL,
        "proprietary kernel module",
        needed="open kernel module",
        where="/proc/driver/nvidia/version",
        fix="install the driver's open variant (package nvidia-open)",
    )


@check("readiness.uvm", aspects=("run",), vendors=("nvidia",))
def uvm(case: Case) -> Finding | None:
    """/dev/nvidia-uvm is there: without it nvidia-smi works and CUDA does not."""
    facts = case.facts.nvidia
    names = facts.nodes.value or []
    if facts.wsl or not any(name.startswith("nvidia") for name in names) or not any(d.exposed for d in case.devices):
        return None
    if "nvidia-uvm" in names:
        return Finding(PASS, "/dev/nvidia-uvm")
    fix = "docker run --gpus all ..." if case.facts.in_container() else "sudo nvidia-modprobe -u -c=0"
    return Finding(FAIL, "no /dev/nvidia-uvm", needed="/dev/nvidia-uvm", where="/dev", fix=fix)


@check("readiness.cann_env", aspects=("build", "run"), vendors=("ascend",))
def cann_env(case: Case) -> Finding | None:
    """CANN's set_env.sh was sourced in this shell; a library on disk that no variable names is not found."""
    kit = case.toolchain.cann
    if kit is None or not kit.there:
        return None  # toolkit.version says it
    if case.toolchain.cann_sourced:
        return Finding(PASS, "sourced", where=kit.origin)
    return Finding(
        FAIL,
        "%s is not sourced" % case.view.shown(kit.root),
        needed="ASCEND_HOME_PATH",
        where="environment",
        why="shells that are not interactive do not read .bashrc",
        fix="source %s/set_env.sh" % case.view.shown(kit.root),
    )


@check("readiness.health", aspects=("run",), vendors=("ascend",))
def health(case: Case) -> Finding | None:
    """npu-smi's own compatibility line does not say that driver and firmware disagree."""
    if case.facts.ascend.mismatched:
        return Finding(WARN, "driver and firmware do not match", fix="install the firmware of the driver's release")
    return None
