"""Checks of kind ``device``. That a device belongs to a supported entry is judged before any of these."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, PASS, WARN, Case, Finding, check
from deepinfer.probes.facts.arch import soc_name


@check("device.entry", aspects=("build", "run"))
def entry(case: Case) -> Finding | None:
    """The device belongs to an entry of the support matrix whose status lets it be built for.

    Identity is the compute capability or the SoC name; the PCI id only where no driver answers; never the name.
    """
    if not case.devices:
        return None
    archs = sorted({device.arch or device.pci_id for device in case.devices})
    return Finding(PASS, "%d x %s" % (len(case.devices), ", ".join(archs)), needed=case.entry["title"])


@check("device.partition", aspects=("run",), vendors=("nvidia",))
def partition(case: Case) -> Finding | None:
    """No device is cut into MIG slices, unless the matrix says that a slice is enough."""
    cut = [device for device in case.devices if device.partitioned]
    if not cut or case.entry["partitioned"]:
        return None
    slices = ", ".join(label for device in cut for label, _, _ in device.partitions) or "no slice made"
    return Finding(
        FAIL,
        "MIG is on for %d of %d (%s)" % (len(cut), len(case.devices), slices),
        needed="whole devices: nobody has measured a slice",
        fix="sudo nvidia-smi -i %s -mig 0" % ",".join(str(device.index) for device in cut),
    )


@check("device.soc_variable", aspects=("build",), vendors=("ascend",))
def soc_variable(case: Case) -> Finding | None:
    """SOC_VERSION, which other builds read, agrees with the board. The hardware wins; DeepInfer does not obey it."""
    text = case.view.env_text("SOC_VERSION")
    real = sorted({device.arch for device in case.devices if device.arch})
    if not text or not real or soc_name(text) in [soc_name(name) for name in real]:
        return None
    return Finding(
        WARN, "SOC_VERSION=%s" % text, needed=", ".join(real), why="the board says otherwise", fix="unset SOC_VERSION"
    )
