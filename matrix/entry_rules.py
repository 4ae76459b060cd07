"""Rules about entries: what they match, and what their status and vendor allow them to say."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.matrix.devices import overlaps
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.load import Tree
from deepinfer.matrix.vocabulary import ACCELERATED, BUILT, PROPOSED, REFUSED, TOOLKITS

# What a device of the vendor cannot be known by.
_FOREIGN = {"ascend": ("compute_capabilities",), "nvidia": ("soc",), "host": ("compute_capabilities", "soc", "pci")}


def matches(tree: Tree) -> Iterator[Finding]:
    """M7: no device is matched by two entries."""
    entries = tree.of("entry")
    for number, later in enumerate(entries):
        for earlier in entries[:number]:
            for key, value in overlaps(earlier.data.get("match", {}), later.data.get("match", {})):
                message = "%s is matched by %s too" % (value, earlier.path)
                yield later.finding("M7", message, "leave it in one of the two entries", "match", key, value)


def accelerators(tree: Tree) -> Iterator[Finding]:
    """M8: an accelerator value belongs to its vendor and selects one entry."""
    first: dict[str, str] = {}
    for document in tree.of("entry"):
        value = document.data.get("accelerator")
        if value is None:
            continue
        vendor = document.data.get("vendor")
        if vendor is not None and value != {"host": "cpu"}.get(vendor, vendor):
            message = "accelerator %r does not select a device of vendor %r" % (value, vendor)
            yield document.finding("M8", message, "name the vendor's own value", "accelerator")
        if value in first:
            message = "accelerator %r already selects %s" % (value, first[value])
            yield document.finding("M8", message, "leave it to one entry", "accelerator")
        first.setdefault(value, document.path)


def status_fields(tree: Tree) -> Iterator[Finding]:
    """M9: the status decides which fields may be there; what is built names architectures."""
    allowed: dict[tuple[str, ...], tuple[str, ...]] = {
        ("accelerator",): BUILT,
        ("reason",): REFUSED,
        ("rfc",): (*PROPOSED, "supported", "deprecated", "removed", "rejected", "withdrawn"),
        ("removal",): ("deprecated", "removed"),
        ("waiver",): ACCELERATED,
        ("require", "toolkit"): ACCELERATED,
        ("require", "driver"): ACCELERATED,
        ("require", "proposed"): PROPOSED,
    }
    for document in tree.of("entry"):
        status = document.data.get("status")
        for path, statuses in allowed.items():
            if status and status not in statuses and document.get(*path) is not None:
                message = "%s has no place in a %s entry" % (".".join(path), status)
                yield document.finding("M9", message, "remove it; it goes with: %s" % ", ".join(statuses), *path)
        if status in ACCELERATED and document.data.get("architectures") == []:
            message = "a %s entry names no architecture to build for" % status
            yield document.finding("M9", message, "list them as the compiler takes them", "architectures")


def vendors(tree: Tree) -> Iterator[Finding]:
    """M14: matches and toolkit fit the vendor."""
    for document in tree.of("entry"):
        vendor, match = document.data.get("vendor"), document.data.get("match", {})
        for key in _FOREIGN.get(str(vendor), ()):
            if match.get(key):
                message = "a device of vendor %s is not known by match.%s" % (vendor, key)
                yield document.finding("M14", message, "remove it, or correct the vendor", "match", key)
        for pci in match.get("pci", {}):
            if vendor in ("nvidia", "ascend") and pci.startswith("10de:") != (vendor == "nvidia"):
                message = "%s is not a device of vendor %s" % (pci, vendor)
                yield document.finding("M14", message, "correct the PCI vendor or the entry's", "match", "pci", pci)
        toolkit = document.get("require", "toolkit", "name")
        if toolkit is not None and vendor is not None and TOOLKITS.get(vendor) != toolkit:
            message = "%s is not the toolkit of vendor %s" % (toolkit, vendor)
            yield document.finding("M14", message, "correct the toolkit or the vendor", "require", "toolkit")


def reachable(tree: Tree) -> Iterator[Finding]:
    """M15: every entry can be matched, but the reference never."""
    for document in tree.of("entry"):
        status, any_match = document.data.get("status"), any(document.data.get("match", {}).values())
        if status == "reference" and any_match:
            yield document.finding("M15", "a reference entry is never matched", "empty its [match]", "match")
        elif status not in ("reference", None) and not any_match:
            fix = "list its compute capabilities, PCI ids or SoC names"
            yield document.finding("M15", "no device can match this entry", fix, "match")


def memory(tree: Tree) -> Iterator[Finding]:
    """M16: memory in bytes has a source of its own."""
    for document in tree.of("entry"):
        for number, item in enumerate(document.data.get("configuration", [])):
            if ("memory_bytes" in item) != ("memory_source" in item):
                fix = "state both, or leave both out"
                message = "memory_bytes and memory_source belong together"
                yield document.finding("M16", message, fix, "configuration", number)
