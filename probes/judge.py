"""The judge: a pure function of what a view answers, the matrix and the wish. Everything it says is in the Verdict."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, UNKNOWN, Case, Finding, run_checks
from deepinfer.probes.facts.host import HostFacts
from deepinfer.probes.verdict import (
    ASPECTS,
    DRAFT,
    ELIGIBLE,
    NO_ACCELERATOR,
    ORDER,
    UNDETERMINED,
    UNSUPPORTED,
    DeviceVerdict,
    Verdict,
    of_findings,
)
from deepinfer.probes.view import HostView
from deepinfer.probes.wish import Wish, entry_by_id, unknown_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.match import Match

# Modules that only a host with a device needs are imported where it is judged: most hosts have none.

BUILT = ("supported", "deprecated")  # the only statuses that a build is ever made for
PROPOSED = ("draft", "accepted")
WSL_LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"


def judge(view: HostView, index: dict[str, Any], wish: Wish, *, aspect: str = "both") -> Verdict:
    """Judge the host behind ``view``. With a target in ``wish`` the entry is given and need not be on the host."""
    aspects = ASPECTS if aspect == "both" else (aspect,)
    facts = HostFacts(view, wish)
    if wish.target:
        verdict = _judge_target(facts, index, entry_by_id(wish.target, index), aspects)
        verdict.named_by = wish.named_by
    else:
        verdict = _judge_devices(facts, index, aspects)
    verdict.notes += ["unknown environment variable %s" % name for name in unknown_variables(view, index)]
    foreign = view.env_text("TORCH_CUDA_ARCH_LIST")
    if foreign:
        from deepinfer.probes.facts.arch import cuda_arch

        words = [cuda_arch(word) or word for word in foreign.replace(";", " ").split()]
        verdict.notes.append("TORCH_CUDA_ARCH_LIST (%s) is not obeyed: the entry decides" % ", ".join(words))
    if verdict.devices or verdict.toolchain or verdict.verdict == UNDETERMINED:
        _mask(verdict, view.env_text("HOME"))
    return verdict


def _mask(verdict: Verdict, home: str) -> None:
    """Variables, paths and names of the host are quoted in what was found; no identifier in them leaves the host."""
    from deepinfer.probes.redact import masked

    for finding in verdict.findings:
        for part in ("found", "needed", "where", "why", "fix"):
            setattr(finding, part, masked(getattr(finding, part), home))
    for item in verdict.devices:
        item.label = masked(item.label, home)
    verdict.notes = [masked(note, home) for note in verdict.notes]


# -- by device --------------------------------------------------------------------------------------------------------


def _judge_devices(facts: HostFacts, index: dict[str, Any], aspects: tuple[str, ...]) -> Verdict:
    devices = facts.devices
    if not devices:
        return _judge_nothing(facts, aspects)
    from deepinfer.probes import match
    from deepinfer.probes.checks import capacity
    from deepinfer.probes.toolchain import choose

    matches = [match.find(device, index) for device in devices]
    visible = [device for device in devices if device.visible] or devices
    judged: dict[str, tuple[dict[str, Any], list[Finding], Any]] = {}
    for entry in (found.entry for found in matches):
        if entry and entry["status"] in BUILT and entry["id"] not in judged:
            own = [other for other, its in zip(devices, matches) if its.entry and its.entry["id"] == entry["id"]]
            toolchain = choose(facts, entry)
            case = Case(facts, index, entry, own, toolchain)
            judged[entry["id"]] = (entry, run_checks(case, aspects), toolchain)
    results = []
    for device, found in zip(devices, matches):
        own_verdict = _of_device(device, found, judged, aspects)
        results.append(DeviceVerdict(device, match.label(device, found.entry), found.entry, own_verdict, found.source))
    best = min((item for item in results if item.device in visible), key=lambda item: ORDER.index(item.verdict))
    verdict = Verdict(best.verdict, aspects)
    verdict.devices, verdict.entry = results, best.entry
    verdict.eligible_entries = sorted({i.entry["id"] for i in results if i.entry and i.verdict == ELIGIBLE})
    if best.entry and best.entry["id"] in judged:
        _, verdict.findings, verdict.toolchain = judged[best.entry["id"]]
    else:
        verdict.findings = [_of_entry(best, index)]
    own = [i.device for i in results if (i.device in visible and i.entry is best.entry) or _same(i.entry, best.entry)]
    own = [device for device in own if device in visible]
    verdict.capacity = capacity.judge(own, index["model"]["payload_bytes"])
    verdict.memory_bytes = capacity.memory(own)
    _remark(verdict, facts)
    return verdict


def _same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    return bool(one and other and one["id"] == other["id"])


def _of_device(device: Device, found: Match, judged: dict[str, Any], aspects: tuple[str, ...]) -> str:
    if not found.known:
        return UNDETERMINED
    if found.entry is None:
        return UNSUPPORTED
    status = found.entry["status"]
    if status in PROPOSED:
        return DRAFT
    if status not in BUILT:
        return UNSUPPORTED
    return of_findings(judged[found.entry["id"]][1], aspects)


def _of_entry(item: DeviceVerdict, index: dict[str, Any]) -> Finding:
    """The one finding of a device that is not built for: why not, and what would change it."""
    entry, device = item.entry, item.device
    seen = "%s (%s)" % (item.label, device.arch or device.pci_id or "not identified")
    names = ", ".join(sorted(entry["id"] for entry in index["entries"] if entry["status"] in BUILT))
    if item.verdict == UNDETERMINED:
        finding = Finding(
            UNKNOWN,
            seen,
            needed=names,
            why="no driver answers and no entry lists this PCI id",
            fix="install the vendor's driver and run the probe again",
        )
        finding.id = "device.identity"
    else:
        if entry is None:
            why = "no entry of the support matrix lists it"
            fix = "propose it: CONTRIBUTING.md, 'Add an entry'"
        elif item.verdict == DRAFT:
            why = "Draft RFC only" if entry["status"] == "draft" else "RFC accepted, nothing is built for it yet"
            fix = "follow %s" % index["rfcs"][str(entry["rfc"])]["file"]
        else:
            why = entry["reason"] or "removed"
            fix = "use one of: %s" % names
            if entry["status"] == "removed" and entry["removal"]:
                fix = "the last version for it is %s" % entry["removal"]["last_good"]
        finding = Finding(FAIL, seen, needed=names, why=why, fix=fix)
        finding.id = "device.entry"
    finding.aspects = ASPECTS
    return finding


def _remark(verdict: Verdict, facts: HostFacts) -> None:
    hidden = [item for item in verdict.devices if not item.device.visible]
    if hidden and len(hidden) < len(verdict.devices):
        verdict.notes.append("%d devices are hidden by the visible-devices variable" % len(hidden))
    others = [item for item in verdict.devices if item.device.visible and not _same(item.entry, verdict.entry)]
    if others and verdict.verdict == ELIGIBLE:
        usable = [item for item in verdict.devices if item.verdict == ELIGIBLE and _same(item.entry, verdict.entry)]
        numbers = ",".join(str(item.device.index) for item in usable)
        nvidia = usable[0].device.vendor == "nvidia"
        name = "CUDA_VISIBLE_DEVICES" if nvidia else "ASCEND_RT_VISIBLE_DEVICES"
        order = "CUDA_DEVICE_ORDER=PCI_BUS_ID " if nvidia else ""
        if any(item.device.vendor == usable[0].device.vendor for item in others):
            verdict.notes.append("other devices are here too; hide them: export %s%s=%s" % (order, name, numbers))
    if verdict.entry and verdict.entry["status"] == "deprecated" and verdict.entry["removal"]:
        verdict.notes.append("deprecated: to be removed on %s" % verdict.entry["removal"]["date"])


# -- without a device -------------------------------------------------------------------------------------------------


def _judge_nothing(facts: HostFacts, aspects: tuple[str, ...]) -> Verdict:
    """No device was listed: is there none, or could nobody look?"""
    signs = _signs(facts)
    doubt = _doubt(facts)
    if signs or doubt:
        verdict = Verdict(UNDETERMINED, aspects)
        problem = facts.nvidia.problem
        if problem:
            finding = Finding(UNKNOWN, problem.reason, why=problem.why, fix=problem.fix or "run nvidia-smi")
            finding.id = "driver.answers"
        else:
            text = "%s points to a device, and none is listed" % ", ".join(signs) if signs else doubt
            finding = Finding(
                UNKNOWN,
                text,
                needed="a list of devices",
                where="/sys/bus/pci/devices, /dev, NVML, nvidia-smi, npu-smi",
                fix="run the probe on the host itself, or start the container with its devices (--gpus all)",
            )
            finding.id = "device.listing"
    else:
        verdict = Verdict(NO_ACCELERATOR, aspects)
        finding = Finding(
            FAIL,
            "no NVIDIA GPU and no Ascend NPU",
            needed="an accelerator that the support matrix lists",
            where="/sys/bus/pci/devices and /dev",
            fix="run the probe on a host that has one",
        )
        finding.id = "device.listing"
    finding.aspects = ASPECTS
    verdict.findings = [finding]
    return verdict


def _signs(facts: HostFacts) -> list[str]:
    signs = list(facts.nvidia.signs) + list(facts.ascend.signs)
    if facts.nvidia.wsl and facts.view.exists(WSL_LIBRARY).is_absent:
        signs.remove("/dev/dxg")  # a Windows GPU of another vendor
    return signs


def _doubt(facts: HostFacts) -> str:
    """Why the absence of devices is not proven; an empty string if a listing was read and shows none."""
    bus, nodes = facts.bus, facts.nvidia.nodes
    if bus.is_unknown and nodes.is_unknown:
        return "neither /sys/bus/pci/devices (%s) nor /dev (%s) can be listed" % (bus.reason, nodes.reason)
    if facts.nvidia.problem and not facts.nvidia.problem.certain:
        return facts.nvidia.problem.reason
    return ""


# -- by name ----------------------------------------------------------------------------------------------------------


def _judge_target(facts: HostFacts, index: dict[str, Any], entry: dict[str, Any], aspects: tuple[str, ...]) -> Verdict:
    from deepinfer.probes import match
    from deepinfer.probes.checks import capacity
    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.toolchain import choose

    devices = facts.devices if entry["vendor"] != "host" else []
    own = [device for device in devices if _same(match.find(device, index).entry, entry)]
    if entry["status"] not in (*BUILT, "reference"):
        item = DeviceVerdict(Device(entry["vendor"], 0), entry["title"], entry, DRAFT, "")
        item.verdict = DRAFT if entry["status"] in PROPOSED else UNSUPPORTED
        item.device.arch = entry["id"]
        verdict = Verdict(item.verdict, aspects)
        verdict.entry, verdict.findings = entry, [_of_entry(item, index)]
        return verdict
    toolchain = choose(facts, entry)
    findings = run_checks(Case(facts, index, entry, own, toolchain), aspects)
    verdict = Verdict(of_findings(findings, aspects), aspects)
    verdict.entry, verdict.findings, verdict.toolchain = entry, findings, toolchain
    verdict.cross = not own and entry["vendor"] != "host"
    for device in devices:
        found = match.find(device, index)
        same = _same(found.entry, entry)
        own_verdict = verdict.verdict if same else UNSUPPORTED if found.known else UNDETERMINED
        if found.entry and found.entry["status"] in PROPOSED:
            own_verdict = DRAFT
        verdict.devices.append(
            DeviceVerdict(device, match.label(device, found.entry), found.entry, own_verdict, found.source)
        )
    if verdict.cross:
        verdict.notes.append("no device of %s is here: what is built is not verified on a device" % entry["id"])
        others = sorted({item.label for item in verdict.devices})
        if others:
            verdict.notes.append("it will not run on this host's %s" % ", ".join(others))
    verdict.capacity = capacity.judge(own, index["model"]["payload_bytes"])
    verdict.memory_bytes = capacity.memory(own)
    return verdict
