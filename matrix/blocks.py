"""The pieces of Markdown that README.md takes over, one function per marker. Tables hold words and sources, no tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deepinfer.matrix.load import Tree
from deepinfer.matrix.vocabulary import ACCELERATED, SOURCE_KINDS, STATUSES

Index = dict[str, Any]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; ``|`` inside a cell is escaped, a line break becomes a space."""
    lines = ["| %s |" % " | ".join(_cell(cell) for cell in row) for row in [head, *rows]]
    return "\n".join([lines[0], "|%s" % (" --- |" * len(head)), *lines[1:]])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def needs(entry: dict[str, Any]) -> str:
    """Toolkit and driver bounds of an entry in one phrase, or what a draft proposes."""
    require = entry["require"]
    words = []
    if require["toolkit"]:
        words.append("%s `%s`" % (require["toolkit"]["name"].upper(), require["toolkit"]["spec"]["text"]))
    if require["driver"]:
        words.append("driver `%s`" % require["driver"]["text"])
    if require["proposed"]:
        words.append("proposed: %s" % require["proposed"])
    return ", ".join(words) or ("none needed" if entry["status"] == "reference" else "none declared")


def in_order(index: Index) -> list[dict[str, Any]]:
    """The entries as people look for them: built ones first, then by status and id."""
    order = sorted(STATUSES, key=lambda status: status not in ACCELERATED)
    return sorted(index["entries"], key=lambda entry: (order.index(entry["status"]), entry["id"]))


def _support(index: Index, tree: Tree) -> str:
    rows, notes = [], []
    for entry in in_order(index):
        status = entry["status"]
        if entry["rfc"] is not None:
            status += ", [RFC %d](%s)" % (entry["rfc"], index["rfcs"][str(entry["rfc"])]["file"])
        rows.append((entry["title"], "`%s`" % entry["id"], status, entry["provenance"], entry["engine"], needs(entry)))
        if entry["reason"]:
            notes.append("* `%s`: %s" % (entry["id"], " ".join(entry["reason"].split())))
    baseline = index["baseline"]
    host = "Every accelerator also needs %s (%s), GCC `%s` and Python `%s`." % (
        baseline["os"],
        " or ".join(baseline["machines"]),
        baseline["gcc"]["text"],
        baseline["python"]["text"],
    )
    head = ("device", "entry", "status", "says who", "our engine", "toolkit")
    return "\n".join([table(head, rows), "", host, "", "Why a device is not built for:", "", *notes])


def _configurations(index: Index, tree: Tree) -> str:
    rows = []
    for document in tree.of("entry"):
        sources = {source["id"]: source for source in document.data["source"]}
        for item in document.data.get("configuration", []):
            source = sources[item["source"]]
            memory = "%d" % item["memory_bytes"] if "memory_bytes" in item else "not stated"
            cells = (item["says"], item["role"], str(item["count"]), memory, item["domain"])
            rows.append((*cells, "%s, read %s" % (SOURCE_KINDS[source["kind"]], source["read"])))
    return table(("statement", "role", "devices", "bytes each", "domain", "source"), rows)


def _model(index: Index, tree: Tree) -> str:
    model = index["model"]
    rows = [(part["name"], "%d" % part["bytes"]) for part in model["parts"]]
    rows += [("all tensors", "%d" % model["payload_bytes"]), ("files, headers included", "%d" % model["file_bytes"])]
    said = ["%s: %s" % (SOURCE_KINDS[source["kind"]], source["says"]) for source in tree.of("model")[0].data["source"]]
    title = "%s, default checkpoint `%s`." % (model["name"], model["checkpoint"])
    sources = ["* %s" % (text[0].upper() + text[1:]) for text in said]
    return "\n".join([title, "", table(("part", "bytes"), rows), "", *sources])


def _gaps(index: Index, tree: Tree) -> str:
    return "\n".join("* **%s.** %s" % (gap["title"], gap["text"]) for gap in index["gaps"])


def _skip(index: Index, tree: Tree) -> str:
    return "\n".join("* %s %s" % (item["when"], item["advice"]) for item in index["skip"])


def _variables(index: Index, tree: Tree) -> str:
    data = tree.of("variables")[0].data
    rows = []
    for kind, title in (("variable", "environment"), ("key", "`pip -C`"), ("foreign", "environment, not ours")):
        for item in data[kind]:
            values = ", ".join("`%s`" % value for value in item.get("values", []))
            rows.append(("`%s`" % item["name"], title, values, item["says"]))
    return table(("name", "where", "values", "meaning"), rows)


BLOCKS: dict[str, Callable[[Index, Tree], str]] = {
    "support": _support,
    "configurations": _configurations,
    "model": _model,
    "gaps": _gaps,
    "skip": _skip,
    "variables": _variables,
}
