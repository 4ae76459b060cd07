"""``rfc new``: the text of an RFC and of its entry, filled in with what was measured; the rest is marked ``FILL:``."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import NamedTuple

from deepinfer.errors import DeepInferError
from deepinfer.matrix.load import Tree
from deepinfer.matrix.rfc import front_matter
from deepinfer.matrix.rfc_case import BLANK
from deepinfer.matrix.validate import Document


class AlreadyProposed(DeepInferError):
    """An entry matches the device, and it has an RFC or is built already."""

    code = "DI403"


class NothingToPropose(DeepInferError):
    """The host shows no device that could be identified."""

    code = "DI404"


class WouldOverwrite(DeepInferError):
    """A file of the proposal exists, or its number is taken."""

    code = "DI405"


class Measured(NamedTuple):
    """Devices of one kind, as the probe measured them. ``arch``: compute capability or SoC name."""

    vendor: str
    arch: str
    names: list[str]
    pci: list[str]
    memory_bytes: int | None
    devices: int
    driver: str
    entry: str | None


class Proposal(NamedTuple):
    """``files``: path to text; ``turned`` is True where an entry that was there became the draft."""

    number: int
    entry: str
    files: dict[str, str]
    turned: bool


def propose(tree: Tree, device: Measured, today: dt.date, number: int | None, slug: str) -> Proposal:
    """The two files. Raises what stands in the way; writes nothing."""
    taken = {document.data.get("number", 0) for document in tree.of("rfc")}
    number = max(taken | {0}) + 1 if number is None else number
    if number in taken:
        raise WouldOverwrite("number %d is taken" % number, fix="leave --number out, or take %d" % (max(taken) + 1))
    there = next((item for item in tree.of("entry") if item.data.get("id") == device.entry), None)
    if there is not None and there.data.get("status") != "unsupported":
        status, rfc = there.data.get("status"), there.data.get("rfc")
        fix = "python -m deepinfer.rfc status %d" % rfc if rfc else "python -m deepinfer.matrix show %s" % device.entry
        raise AlreadyProposed("%s, which is %s, matches this device already" % (device.entry, status), fix=fix)
    name = str(device.entry) if there else _id_of(device)
    title = there.data["title"] if there else _title_of(device)
    path = "rfcs/%04d-%s.md" % (number, slug or _slug(name))
    entry_path = "matrix/entries/%s.toml" % name
    for file in [path] + ([] if there else [entry_path]):
        if (tree.root / file).exists():
            raise WouldOverwrite("%s exists" % file, fix="give another --slug, or edit that file")
    if there:
        entry = _turned((tree.root / entry_path).read_text(encoding="utf-8"), there, device, number, today)
    else:
        entry = _new_entry(name, title, device, number, today)
    template = (tree.root / "rfcs" / "template.md").read_text(encoding="utf-8")
    payload = tree.of("model")[0].data["payload_bytes"]
    files = {path: _rfc(template, name, title, device, number, today, payload), entry_path: entry}
    return Proposal(number, name, files, there is not None)


def _id_of(device: Measured) -> str:
    if device.vendor == "nvidia":
        return "nvidia-sm" + device.arch.replace(".", "")
    words = re.sub(r"[^a-z0-9]+", "-", device.arch.lower()).strip("-")
    return words if words.startswith("ascend") else "ascend-" + words


def _slug(name: str) -> str:
    return name.partition("-")[2] or name


def _title_of(device: Measured) -> str:
    name = device.names[0] if device.names else device.arch
    return ("NVIDIA SM%s (%s)" % (device.arch.replace(".", ""), name) if device.vendor == "nvidia" else name)[:60]


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _match_lines(device: Measured) -> list[str]:
    key = "compute_capabilities" if device.vendor == "nvidia" else "soc"
    arch = device.arch if device.vendor == "nvidia" else device.arch.lower()
    lines = ["[match]", "%s = %s" % (key, _quote([arch])), ""]
    if device.pci:
        label = device.names[0] if device.names else device.arch
        lines += ["[match.pci]", *("%s = %s" % (_quote(pci), _quote(label)) for pci in device.pci), ""]
    return lines


def _new_entry(name: str, title: str, device: Measured, number: int, today: dt.date) -> str:
    key = "compute_capabilities" if device.vendor == "nvidia" else "soc"
    covers = ["match." + key] + (["match.pci"] if device.pci else [])
    lines = [
        "schema = 1",
        "id = %s" % _quote(name),
        "title = %s" % _quote(title),
        "vendor = %s" % _quote(device.vendor),
    ]
    lines += ['status = "draft"', "rfc = %d" % number, "partitioned = false", 'provenance = "rfc"', ""]
    return "\n".join([*lines, *_match_lines(device), *_added(device, number, today, covers)])


def _turned(text: str, there: Document, device: Measured, number: int, today: dt.date) -> str:
    """The entry that was there, as the draft: its facts stay, what goes with its old status does not."""
    text = re.sub(r'(?m)^status = "unsupported"$', 'status = "draft"\nrfc = %d' % number, text, count=1)
    text = re.sub(r'(?ms)^reason = (?:""".*?"""|"[^"\n]*")\n', "", text, count=1)
    text = re.sub(r'(?m)^provenance = ".*"$', 'provenance = "rfc"', text, count=1)
    new = [pci for pci in device.pci if pci not in there.get("match", "pci")] if there.get("match", "pci") else []
    if new:
        label = device.names[0] if device.names else device.arch
        rows = "".join("%s = %s\n" % (_quote(pci), _quote(label)) for pci in new)
        text = re.sub(r"(?m)^\[match\.pci\]\n", "[match.pci]\n" + rows, text, count=1)
    added = _added(device, number, today, ["match.pci"] if new else [])
    first = text.index("[[source]]")
    machine, sources = added[: added.index("[[source]]")], added[added.index("[[source]]") :]
    return text[:first] + "\n".join(machine) + ("\n" if machine else "") + "\n".join(sources) + "\n" + text[first:]


def _added(device: Measured, number: int, today: dt.date, covers: list[str]) -> list[str]:
    """The measured machine, and the two sources of a draft."""
    lines: list[str] = []
    words = re.sub(r"[^a-z0-9]+", "-", (device.names[0] if device.names else device.arch).lower()).strip("-")
    if device.memory_bytes:
        lines += ["[[configuration]]", "id = %s" % _quote("%s-%d" % (words, device.devices)), 'role = "any"']
        lines += ["devices = %s" % _quote(device.names), "count = %d" % device.devices]
        lines += ["memory_bytes = %d" % device.memory_bytes, 'memory_source = "probe"']
        lines += ['domain = "%s how these devices hang together"' % BLANK]
        lines += [
            "says = %s" % _quote("%d x %s, as probed." % (device.devices, device.names[0])),
            'source = "probe"',
            "",
        ]
    driver = " by driver %s" % device.driver if device.driver else ""
    measured = "The probe read %d x %s, %s%s." % (
        device.devices,
        (device.names or [device.arch])[0],
        device.arch,
        driver,
    )
    lines += ["[[source]]", 'id = "rfc"', 'kind = "rfc"', "says = %s" % _quote("RFC %d proposes it." % number)]
    lines += ["read = %s" % today, "covers = []", ""]
    lines += ["[[source]]", 'id = "probe"', 'kind = "log"', "says = %s" % _quote(measured), "read = %s" % today]
    return [*lines, "covers = %s" % _quote(covers), ""]


def _rfc(template: str, name: str, title: str, device: Measured, number: int, today: dt.date, payload: int) -> str:
    total = device.devices * device.memory_bytes if device.memory_bytes else None
    front = ["+++", "number = %d" % number, "title = %s" % _quote(title), "created = %s" % today]
    front += ['authors = ["%s your name or handle"]' % BLANK, "entries = %s" % _quote([name]), ""]
    front += [
        "[[history]]",
        'status = "draft"',
        "date = %s" % today,
        'says = "Proposed from a probe of the device."',
        "",
    ]
    front += ["[[blocker]]", 'id = "kernels"', 'kind = "kernel"']
    front += ['text = "%s one sentence: which kernels are missing on this device"' % BLANK, ""]
    if total is not None and total < payload:
        front += ["[[blocker]]", 'id = "capacity"', 'kind = "capacity"']
        front += ['text = "The weights need %d bytes, the devices have %d."' % (payload, total), ""]
    front += ["[[blocker]]", 'id = "evidence"', 'kind = "evidence"', 'text = "No gate was run on the device."', "+++"]
    facts = [
        "* %d x %s; identity: %s; PCI %s"
        % (device.devices, ", ".join(device.names), device.arch, ", ".join(device.pci) or "not read")
    ]
    if device.memory_bytes:
        facts.append("* memory: %d bytes each, as the driver prints it" % device.memory_bytes)
    capacity = []
    if total is not None:
        left = total - payload
        words = "which leaves %d for everything else" % left if left >= 0 else "which is %d short" % -left
        capacity = ["The weights are %d bytes; the devices have %d, %s." % (payload, total, words)]
    body = template[template.index("+++", 3) + 3 :].replace("# Title", "# " + title, 1)
    body = body.replace("## Hardware facts\n\n", "## Hardware facts\n\n%s\n\n" % "\n".join(facts))
    if capacity:
        body = body.replace("## Capacity\n\n", "## Capacity\n\n%s\n\n" % "\n".join(capacity))
    text = "\n".join(front) + body
    front_matter(text)  # raises if the template lost its form
    return text
