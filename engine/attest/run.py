"""The gates probe, build and conformance, each as checks of one run."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.engine.attest.document import Run
from deepinfer.engine.attest.host import Seen
from deepinfer.errors import DeepInferError
from deepinfer.probes import match
from deepinfer.probes.artifact import device_code

if TYPE_CHECKING:
    from deepinfer.engine.ops.conformance import Outcome
    from deepinfer.engine.ops.contract import Contract


class NoTorch(DeepInferError):
    """Conformance needs torch for the references, and it is missing or does not see the device."""

    code = "DI423"


def probe(run: Run, seen: Seen, index: dict[str, Any]) -> None:
    """Gate ``probe``: every device matches the entry by what the driver says, and its facts equal the entry's."""
    entry = run.entry
    for number, device in enumerate(seen.devices):
        found = match.find(device, index)
        same = found.entry is not None and found.entry["id"] == entry["id"]
        run.check("device.%d.entry" % number, same, entry["id"] if same else "", note="by %s" % found.source)
        known = device.arch in entry["match"]["compute_capabilities"] or bool(device.arch and device.vendor == "ascend")
        run.check(
            "device.%d.arch" % number, known, device.arch, bound=", ".join(entry["match"]["compute_capabilities"])
        )
        listed = entry["match"]["pci"].get(device.pci_id)
        note = "" if listed else "the entry does not list this PCI id"
        run.check("device.%d.pci" % number, True if listed else None, device.pci_id, bound=listed or "", note=note)
        whole = device.partitioned is False or (device.partitioned is None and not device.partitions)
        run.check(
            "device.%d.whole" % number, whole or entry["partitioned"], note="" if whole else "a slice of a device"
        )
        _memory(run, number, device, entry)
    _machine(run, seen, entry)


def _memory(run: Run, number: int, device: Any, entry: dict[str, Any]) -> None:
    label = match.label(device, None)
    stated = {
        item["memory_bytes"]
        for item in entry["configurations"]
        if item["memory_bytes"] is not None and any(name.lower() == label.lower() for name in item["devices"])
    }
    measured = device.memory_bytes or 0
    bound = ", ".join(str(value) for value in sorted(stated))
    note = "" if stated else "no configuration of the entry lists %s" % label
    fine = measured in stated if stated else None
    run.check("device.%d.memory" % number, fine, measured, "bytes", bound, note)


def _machine(run: Run, seen: Seen, entry: dict[str, Any]) -> None:
    """Whether the host is one of the entry's counted machines. It need not be: then the run says so."""
    names = sorted(match.label(device, None).lower() for device in seen.devices)
    for item in entry["configurations"]:
        if set(names) <= {name.lower() for name in item["devices"]} and len(names) == item["count"]:
            run.check("machine", True, item["id"])
            return
    stated = ", ".join(item["id"] for item in entry["configurations"]) or "none stated"
    run.check(
        "machine", None, len(names), "devices", stated, "not one of the entry's machines: nothing is shown of them"
    )


def build(run: Run, library: Path, architectures: Iterable[str], note: str) -> None:
    """Gate ``build``: the library holds machine code for exactly the architectures of the entry, and nothing else."""
    data = library.read_bytes()
    try:
        found = device_code.read(data)
        cubins, ptx = sorted(found.cubins), sorted(found.ptx)
    except device_code.Malformed as error:
        run.check("device_code", False, note=str(error))
        return
    wanted = sorted(architectures)
    run.check(
        "architectures", cubins == wanted, ", ".join(cubins) or "none", bound=", ".join(wanted) or "none", note=note
    )
    run.check("ptx", not ptx, ", ".join(ptx) or "none", bound="none")
    digest = hashlib.sha256(data).hexdigest()
    run.artifacts.append({"name": library.name, "sha256": digest, "bytes": len(data)})


def conformance(run: Run, outcomes: Callable[[int], Iterable[Outcome]], seed: int | None = None) -> int:
    """Gate ``conformance``: one check per op that runs or should; ``outcomes(seed)`` runs the suite. Returns the seed.

    ``op.NAME`` is a native version; an op that has none for this target is listed, one that has none at all is not.
    ``batch.NAME`` holds it to the promise that no other row of a call changes a row. ``reference.NAME`` is the torch
    reference on this device.
    """
    from deepinfer.engine.ops.registry import load_all

    ops = load_all()
    seed = time.time_ns() % 2**31 if seed is None else seed
    rows: dict[tuple[str, str], list[Outcome]] = {("op", name): [] for name, op in ops.items() if op.native}
    for outcome in outcomes(seed):
        rows.setdefault((outcome.what, outcome.op), []).append(outcome)
    for (what, name), found in sorted(rows.items()):
        if found:
            _conforms(run, "%s.%s" % (what, name), found, ops[name].contract, seed)
        else:
            run.check("op." + name, None, note="no native version for this target")
    return seed


def _conforms(run: Run, check: str, found: list[Outcome], contract: Contract, seed: int) -> None:
    bounds = {contract.bound(argument.name) for argument in contract.arguments if argument.intent in ("out", "inout")}
    bad = [item for item in found if not item.passed]
    worst = max((item.worst for item in found), key=lambda value: math.inf if math.isnan(value) else value)
    exact = bounds == {0.0} or check.startswith("batch.")
    how = "bit for bit" if exact else "relative"
    note = "%d cases, seed %d, %s" % (len(found), seed, how)
    if bad:
        note += "; %d differ, the first: %s: %s" % (len(bad), bad[0].case, bad[0].detail)
    run.check(check, not bad, _number(worst), "worst error", _number(0.0 if exact else max(bounds)), note)


def _number(value: float) -> str:
    """A number as text: evidence holds no floats."""
    return "%d" % value if math.isfinite(value) and value == int(value) else "%.6g" % value


def cuda_ready() -> str:
    """The torch device to run on. Raises :class:`NoTorch`."""
    try:
        import torch
    except ImportError:
        raise NoTorch("torch is not installed", fix="pip install torch, built for this driver") from None
    if not torch.cuda.is_available():
        raise NoTorch("torch sees no CUDA device", fix="install a torch that is built for CUDA and this driver")
    return "cuda:0"
