"""Rules about files: their names, how they refer to each other and to sources, and what their words may say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from deepinfer.matrix.findings import Finding
from deepinfer.matrix.load import Tree
from deepinfer.matrix.rfc import number_of
from deepinfer.matrix.schema import FILES, cover_name
from deepinfer.matrix.validate import Document
from deepinfer.matrix.vocabulary import STATUSES

# A date outside is a typing error. Fixed years, not today's: a tree must not turn red, or green, by itself.
_YEARS = range(2024, 2036)
_PROMISES = r"support(s|ed|ing)?|unsupported|eligible|works|working|compatib\w*|ready|verified|certified|stable"
_STATUS_WORDS = "|".join(STATUSES)


def names(tree: Tree) -> Iterator[Finding]:
    """M6: ids and numbers equal the file's name and are unique."""
    seen: Counter[int] = Counter(n for d in tree.documents if d.kind == "rfc" and (n := _file_number(d)) is not None)
    for document in tree.documents:
        stem = document.path.rpartition("/")[2].partition(".")[0]
        if document.kind == "entry" and document.data.get("id", stem) != stem:
            message = "id %r is not the file's name %r" % (document.data["id"], stem)
            yield document.finding("M6", message, "rename the file or the id", "id")
        if document.kind != "rfc":
            continue
        number = _file_number(document)
        if number is None:
            yield document.finding("M6", "the file's name is not NNNN-slug.md", "use lower-case words joined by dashes")
        elif document.data.get("number", number) != number:
            message = "number %d is not that of the file's name" % document.data["number"]
            yield document.finding("M6", message, "write number = %d, or rename the file" % number, "number")
        elif seen[number] > 1:
            yield document.finding("M6", "number %d is taken twice" % number, "take the next free number", "number")
    yield from _unique(tree, "configuration")


def _unique(tree: Tree, table: str) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for document in tree.of("entry"):
        for number, item in enumerate(document.data.get(table, [])):
            name = item.get("id")
            if name in first:
                message = "%s %r is already in %s" % (table, name, first[name])
                yield document.finding("M6", message, "choose another id", table, number, "id")
            elif name is not None:
                first[name] = document.path


def rfc_links(tree: Tree) -> Iterator[Finding]:
    """M10: entry and RFC name each other."""
    files = {_file_number(document) for document in tree.documents if document.kind == "rfc"}
    listed = {document.data.get("number"): document.data.get("entries", []) for document in tree.of("rfc")}
    stated = {document.data.get("id"): document.data.get("rfc") for document in tree.of("entry")}
    for document in tree.of("entry"):
        name, number = document.data.get("id"), document.data.get("rfc", 0)
        if number and number not in files:
            fix = "write it (start from rfcs/template.md), or correct the number"
            yield document.finding("M10", "rfcs/%04d-*.md does not exist" % number, fix, "rfc")
        elif number in listed and name is not None and name not in listed[number]:
            message = "RFC %d does not list %s" % (number, name)
            yield document.finding("M10", message, "add %r to entries in the RFC" % name, "rfc")
    for document in tree.of("rfc"):
        for name in document.data.get("entries", []):
            if name not in stated:
                fix = "write matrix/entries/%s.toml" % name
                yield document.finding("M10", "entry %s does not exist" % name, fix, "entries")
            elif stated[name] != document.data.get("number"):
                fix = "write rfc = %s there" % document.data.get("number")
                yield document.finding("M10", "entry %s does not name this RFC" % name, fix, "entries")


def coverage(tree: Tree) -> Iterator[Finding]:
    """M11: every sourced field is covered by a source, and sources cover only such fields."""
    for document in tree.documents:
        sourced = {cover_name(field): None for field in FILES[document.kind] if field.sourced}
        covered: set[str] = set()
        for number, source in enumerate(document.data.get("source", [])):
            for name in source.get("covers", []):
                covered.add(name)
                place = ("source", number, "covers")
                if name not in sourced:
                    fix = "use one of: %s" % ", ".join(sourced)
                    yield document.finding("M11", "covers %r, which is not a sourced field" % name, fix, *place)
                elif tuple(name.split(".")) not in document.lines:
                    yield document.finding("M11", "covers %r, which is not in this file" % name, "remove it", *place)
        for name in sourced:
            path = tuple(name.split("."))
            if name not in covered and document.get(*path):
                fix = "add %r to covers of the source that says so" % name
                yield document.finding("M11", "no source covers %s" % name, fix, *path)


def source_names(tree: Tree) -> Iterator[Finding]:
    """M12: source ids are unique in their file, and every reference to one resolves."""
    for document in tree.documents:
        ids = [source.get("id") for source in document.data.get("source", [])]
        for number, name in enumerate(ids):
            if name is not None and name in ids[:number]:
                message = "source %r is there twice" % name
                yield document.finding("M12", message, "choose another id", "source", number, "id")
        uses: list[tuple[Any, ...]] = [("provenance",)]
        for number, _ in enumerate(document.data.get("configuration", [])):
            uses += [("configuration", number, "source"), ("configuration", number, "memory_source")]
        for path in uses:
            name = document.get(*path)
            if name is not None and name not in ids:
                message = "%s names source %r, which is not in this file" % (path[-1], name)
                fix = "add that [[source]], or name one of: %s" % ", ".join(map(str, ids))
                yield document.finding("M12", message, fix, *path)


def dates(tree: Tree) -> Iterator[Finding]:
    """M13: dates are plausible, and a removal is announced before it happens."""
    for document in tree.documents:
        paths: list[tuple[Any, ...]] = [("created",), ("waiver", "date"), ("waiver", "until"), ("removal", "date")]
        for table, key in (("upstream", "read"), ("history", "date"), ("approval", "date")):
            paths += [(table, number, key) for number, _ in enumerate(document.data.get(table, []))]
        reads = [("source", number, "read") for number, _ in enumerate(document.data.get("source", []))]
        for path in paths + reads:
            value = document.get(*path)
            if value is not None and value.year not in _YEARS:
                message = "%s is not in %d to %d" % (value, _YEARS[0], _YEARS[-1])
                yield document.finding("M13", message, "correct the year", *path)
        removal = document.get("removal", "date")
        known = [value for path in reads if (value := document.get(*path)) is not None]
        if removal is not None and known and removal < max(known):
            message = "removal on %s is before a source was read" % removal
            yield document.finding("M13", message, "announce a later day", "removal", "date")


def variables(tree: Tree) -> Iterator[Finding]:
    """M17: names of variables and keys are unique, and DEEPINFER_ACCELERATOR takes what is there."""
    selectors = {document.data["accelerator"] for document in tree.of("entry") if "accelerator" in document.data}
    for document in tree.of("variables"):
        for table, prefix in (("variable", "DEEPINFER_"), ("key", "deepinfer."), ("foreign", "")):
            items = [item.get("name", "") for item in document.data.get(table, [])]
            for number, name in enumerate(items):
                place = (table, number, "name")
                if name in items[:number]:
                    yield document.finding("M17", "%s is there twice" % name, "remove one", *place)
                if name and (not name.startswith(prefix) or (not prefix and name.startswith("DEEPINFER_"))):
                    yield document.finding("M17", "%s does not belong to [[%s]]" % (name, table), "move it", *place)
        for number, item in enumerate(document.data.get("variable", [])):
            right = sorted({"auto", *selectors})
            if item.get("name") == "DEEPINFER_ACCELERATOR" and sorted(item.get("values", right)) != right:
                message = "values of DEEPINFER_ACCELERATOR are not those that the entries answer to"
                yield document.finding("M17", message, "write: %s" % ", ".join(right), "variable", number, "values")


def model_bytes(tree: Tree) -> Iterator[Finding]:
    """M18: the model's parts add up to its payload, and files are larger than it."""
    for document in tree.of("model"):
        total = sum(part.get("bytes", 0) for part in document.data.get("part", []))
        payload, files = document.data.get("payload_bytes"), document.data.get("file_bytes")
        if payload is not None and total != payload:
            message = "the parts add up to %d, not to %d" % (total, payload)
            yield document.finding("M18", message, "correct the part that is off", "payload_bytes")
        if payload is not None and files is not None and files <= payload:
            message = "file_bytes leave no room for the headers"
            yield document.finding("M18", message, "measure the files", "file_bytes")


def words(tree: Tree) -> Iterator[Finding]:
    """M19: titles and blockers hold no word that sounds like a status or a promise."""
    for document in tree.of("entry") + tree.of("rfc"):
        places: list[tuple[Any, ...]] = [("title",)]
        places += [("blocker", number, "text") for number, _ in enumerate(document.data.get("blocker", []))]
        for path in places:
            banned = _PROMISES + ("|" + _STATUS_WORDS if path == ("title",) else "")
            match = re.search(r"\b(%s)\b" % banned, document.get(*path) or "", re.IGNORECASE)
            if match:
                message = "%r sounds like a status" % match.group(0)
                yield document.finding("M19", message, "say what is missing; the entry holds the status", *path)


def _file_number(document: Document) -> int | None:
    return number_of(document.path.rpartition("/")[2])
