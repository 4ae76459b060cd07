"""One entry, or the list of them, in words for a terminal."""

from __future__ import annotations

import textwrap
from typing import Any

from deepinfer.matrix.blocks import needs
from deepinfer.matrix.compiled import index_of
from deepinfer.matrix.load import Tree
from deepinfer.matrix.vocabulary import BUILT, PROPOSED, SOURCE_KINDS, STATUSES


def list_text(index: dict[str, Any]) -> str:
    """An aligned table of all entries, without color or lines, so that cut and grep like it."""
    head = ("ENTRY", "STATUS", "RFC", "ENGINE", "TOOLKIT", "DEVICE")
    rows = [head]
    for entry in index["entries"]:
        rfc = "-" if entry["rfc"] is None else str(entry["rfc"])
        toolkit = needs(entry).replace("`", "")
        rows.append((entry["id"], entry["status"], rfc, entry["engine"], toolkit, entry["title"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def entry_data(tree: Tree, name: str) -> dict[str, Any]:
    """Everything about one entry: its row of the index, its sources, its waiver and its RFC."""
    index = index_of(tree)
    entry = next(item for item in index["entries"] if item["id"] == name)
    written = next(document.data for document in tree.of("entry") if document.data["id"] == name)
    sources = [{**source, "read": source["read"].isoformat()} for source in written["source"]]
    waiver = written.get("waiver")
    return {
        "entry": entry,
        "sources": sources,
        "waiver": {key: str(value) for key, value in waiver.items()} if waiver else None,
        "rfc": index["rfcs"].get(str(entry["rfc"])),
    }


def entry_text(data: dict[str, Any]) -> str:
    """The same in plain words."""
    entry = data["entry"]
    lines = ["%s: %s" % (entry["id"], entry["title"])]
    lines += _pair("status", "%s (%s)" % (entry["status"], STATUSES[entry["status"]]))
    lines += _pair("says who", entry["provenance"])
    lines += _pair("our engine", entry["engine"])
    if entry["reason"]:
        lines += _pair("reason", entry["reason"])
    if data["waiver"]:
        lines += _pair("waiver", "%s: %s" % (data["waiver"]["date"], data["waiver"]["says"]))
    if entry["removal"]:
        lines += _pair("removal", "on %(date)s; last good version %(last_good)s" % entry["removal"])
    lines += _build(entry) + _match(entry) + _configurations(entry)
    lines += _rfc(entry, data["rfc"]) + _sources(data["sources"])
    return "\n".join(lines) + "\n"


def _pair(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        110,
        initial_indent="  %-11s " % name,
        subsequent_indent=" " * 14,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _build(entry: dict[str, Any]) -> list[str]:
    chosen = entry["accelerator"]
    how = "pip install refuses it; no variable selects it"
    if chosen:
        how = "DEEPINFER_ACCELERATOR=%s pip install ." % chosen
    compilers = ["%s %s" % (name, spec["text"]) for name, spec in sorted(entry["require"]["compilers"].items())]
    host = "%s, Python %s" % (" or ".join(compilers), entry["require"]["python"]["text"])
    targets = ", ".join(entry["architectures"]) or "none declared"
    lines = _pair("build", how)
    # Bounds of what is not built would read like a promise.
    if entry["status"] in (*BUILT, *PROPOSED):
        lines += _pair("targets", targets) + _pair("toolkit", needs(entry).replace("`", ""))
    if entry["status"] in BUILT:
        lines += _pair("host", host)
    return lines


def _match(entry: dict[str, Any]) -> list[str]:
    match, lines = entry["match"], []
    if match["compute_capabilities"]:
        lines += _pair("matches", "compute capability %s" % ", ".join(match["compute_capabilities"]))
    if match["soc"]:
        lines += _pair("matches", "SoC %s" % ", ".join(match["soc"]))
    for pci, label in sorted(match["pci"].items()):
        lines += _pair("matches", "%s %s" % (pci, label))
    lines = lines or _pair("matches", "nothing: it is never detected, only asked for")
    slices = "allowed" if entry["partitioned"] else "a slice of a device (MIG, vNPU) is not accepted: unmeasured"
    return lines + _pair("partitions", slices)


def _configurations(entry: dict[str, Any]) -> list[str]:
    lines = []
    for item in entry["configurations"]:
        memory = "%d bytes each" % item["memory_bytes"] if item["memory_bytes"] is not None else "memory not stated"
        text = "%(says)s [role: %(role)s, devices: %(count)d, domain: %(domain)s" % item
        lines += _pair("machines", "%s, %s; source: %s]" % (text, memory, item["source"]))
    return lines


def _rfc(entry: dict[str, Any], rfc: dict[str, Any] | None) -> list[str]:
    if rfc is None:
        return []
    where = " (%s)" % rfc["upstream"] if rfc["upstream"] else ""
    lines = _pair("RFC %d" % entry["rfc"], "%s; %s%s" % (rfc["title"], rfc["file"], where))
    for blocker in rfc["blockers"]:
        lines += _pair("blocker", "%s: %s" % (blocker["id"], blocker["text"]))
    return lines


def _sources(sources: list[dict[str, Any]]) -> list[str]:
    lines = []
    for source in sources:
        where = " <%s>" % source["url"] if "url" in source else ""
        covers = " [covers %s]" % ", ".join(source["covers"]) if source["covers"] else ""
        origin = "%s, read %s%s" % (SOURCE_KINDS[source["kind"]], source["read"], where)
        lines += _pair("source", "%s: %s: %s%s" % (source["id"], origin, source["says"], covers))
    return lines
