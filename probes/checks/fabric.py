"""Checks of kind ``fabric``: the link between the devices of one host."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, PASS, UNKNOWN, WARN, Case, Finding, check

_NONE = ("Not Supported", "N/A")


@check("fabric.state", aspects=("run",), vendors=("nvidia",))
def state(case: Case) -> Finding | None:
    """The NVLink fabric came up on every device: until it does, CUDA itself answers error 802.

    Asked of the driver, not of the fabric-manager service, which rightly does not run on a GB200 node. A device
    without a fabric, such as one passed to a virtual machine alone, answers "Not Supported"; that is fine for one.
    """
    usable = [device for device in case.devices if device.visible and device.exposed]
    if not usable or not case.facts.nvidia.answered_by:
        return None
    seen = [device.fabric for device in usable if device.fabric]
    bad = [
        pair
        for pair in seen
        if pair[0] not in (*_NONE, "Completed") or (pair[0] == "Completed" and pair[1] != "Success")
    ]
    if bad:
        return Finding(
            FAIL,
            "%d of %d devices: %s, %s" % (len(bad), len(usable), bad[0][0], bad[0][1]),
            needed="Completed, Success",
            where=case.facts.nvidia.answered_by,
            why="CUDA answers 802 (system not yet initialized) until the NVLink fabric is up",
            fix="sudo systemctl restart nvidia-fabricmanager   (its version must equal the driver's)",
        )
    if len(seen) < len(usable):
        if len(usable) == 1:
            return Finding(WARN, "not read", fix="run: nvidia-smi -q | grep -A4 Fabric")
        return Finding(
            UNKNOWN,
            "state not read for %d of %d devices" % (len(usable) - len(seen), len(usable)),
            needed="Completed, Success",
            fix="run: nvidia-smi -q | grep -A4 Fabric",
        )
    if len(usable) > 1 and any(pair[0] in _NONE for pair in seen):
        return Finding(WARN, "no NVLink fabric between %d devices" % len(usable), why="they talk over PCIe")
    return Finding(PASS, "%s, %s" % seen[0], where=case.facts.nvidia.answered_by)
