"""Rules about RFCs: what they must hold in each state, who may approve, and what their figures rest on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from deepinfer.matrix.findings import Finding
from deepinfer.matrix.rfc_case import BLANK, SECTIONS, RfcCase, approvals_number, approvals_of, bare, sections
from deepinfer.matrix.transitions import APPROVED, FIRST, STEPS, next_steps
from deepinfer.matrix.validate import Document
from deepinfer.matrix.vocabulary import ACCELERATED, PROPOSED

_PINNED = re.compile(r"https://github\.com/deepseek-ai/DeepInfer/(pull/[1-9][0-9]*|commit/[0-9a-f]{40})")
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?) ?([KMGT]i?B)\b")
_FIGURE = re.compile(r"(?<![\w.:-])(\d{7,})(?![\w:-])")


def blanks(case: RfcCase) -> Iterator[Finding]:
    """R1: no blank is left."""
    for document in case.tree.documents:
        if document.kind in ("rfc", "entry", "approval"):
            for number, line in enumerate(case.text(document).splitlines() if document.data else (), 1):
                if BLANK in line:
                    message = "a blank is left: %s" % line[line.index(BLANK) :].strip('"').strip()
                    yield Finding(document.path, number, "R1", message, "replace it, %s included" % BLANK)


def shape(case: RfcCase) -> Iterator[Finding]:
    """R2: an RFC of a device lists entries and has its sections, each with text; one of the process lists none."""
    for rfc in case.tree.of("rfc"):
        process, entries = rfc.data.get("kind") == "process", rfc.data.get("entries")
        if entries is not None and process == bool(entries):
            message = "a process RFC lists entries" if process else "it lists no entry"
            fix = "remove kind, or the entries" if process else 'list what it proposes, or write kind = "process"'
            yield rfc.finding("R2", message, fix, "entries")
        if process or not entries:
            continue
        found = sections(case.text(rfc))
        empty = [name for name in SECTIONS if not found.get(name)]
        if empty:
            fix = "write it; rfcs/template.md says what belongs there"
            yield rfc.finding("R2", "section %s is missing or empty" % ", ".join("## " + n for n in empty), fix)


def one_status(case: RfcCase) -> Iterator[Finding]:
    """R3: the entries of an RFC have one status, the last of its history; without an RFC upstream's README says it."""
    for entry in case.tree.of("entry"):
        if entry.data.get("status") not in ACCELERATED or "rfc" in entry.data:
            continue
        sources = [item for item in entry.data.get("source", []) if item.get("id") == entry.data.get("provenance")]
        if sources and sources[0].get("kind", "upstream-readme") != "upstream-readme":
            message = "it is %s by no RFC, and not by upstream's README" % entry.data["status"]
            yield entry.finding("R3", message, "begin with an RFC: python -m deepinfer.rfc new", "provenance")
    for rfc in case.tree.of("rfc"):
        statuses, history = case.statuses_of(rfc), rfc.data.get("history", [])
        if len(statuses) > 1:
            message = "its entries are %s" % " and ".join(statuses)
            yield rfc.finding("R3", message, "split the RFC: entries that part ways need their own", "entries")
        elif statuses and not history:
            yield rfc.finding("R3", "it has no history", "add [[history]] with status, date and says")
        elif statuses and history[-1].get("status", statuses[0]) != statuses[0]:
            message = "the history ends with %s, its entries are %s" % (history[-1]["status"], statuses[0])
            place = ("history", len(history) - 1, "status")
            yield rfc.finding("R3", message, "add the step to the history, or correct the entry", *place)


def steps(case: RfcCase) -> Iterator[Finding]:
    """R4: a history begins as a draft and moves one step at a time, forward in time."""
    for rfc in case.tree.of("rfc"):
        history = rfc.data.get("history", [])
        if history and history[0].get("status", FIRST) != FIRST:
            message = "the history begins with %s" % history[0]["status"]
            yield rfc.finding("R4", message, "begin with %s" % FIRST, "history", 0, "status")
        for number, (old, new) in enumerate(pairwise(history), 1):
            if "status" in old and "status" in new and new["status"] not in STEPS[old["status"]]:
                message = "from %s to %s is no single step" % (old["status"], new["status"])
                fix = "%s goes to: %s" % (old["status"], next_steps(old["status"]))
                yield rfc.finding("R4", message, fix, "history", number, "status")
            elif "date" in old and "date" in new and new["date"] < old["date"]:
                message = "%s is before the step that it follows (%s)" % (new["date"], old["date"])
                yield rfc.finding("R4", message, "correct the date", "history", number, "date")
        first = history[0].get("date") if history else None
        if first and "created" in rfc.data and first < rfc.data["created"]:
            yield rfc.finding("R4", "its history is older than the RFC", "correct the date", "history", 0, "date")


def approved(case: RfcCase) -> Iterator[Finding]:
    """R6: each step that needs it has an approval, not dated after it; approvals belong to an RFC."""
    for rfc in case.tree.of("rfc"):
        number = rfc.data.get("number", -1)
        given = [approval for _, _, approval in approvals_of(case.tree, number)]
        for place, item in enumerate(rfc.data.get("history", [])):
            status, date = item.get("status"), item.get("date")
            fitting = [a for a in given if a.get("status") == status and (not date or a.get("date", date) <= date)]
            if status in APPROVED and not fitting:
                message = "nobody approved the step to %s" % status
                fix = "somebody else adds [[approval]] to rfcs/approvals/%04d.toml" % number
                yield rfc.finding("R6", message, fix, "history", place, "status")
    numbers = {rfc.data.get("number") for rfc in case.tree.of("rfc")}
    for document in case.tree.documents:
        if document.kind == "approval" and approvals_number(document) not in numbers:
            yield document.finding("R6", "there is no such RFC", "name it after its RFC: rfcs/approvals/NNNN.toml")


def recused(case: RfcCase) -> Iterator[Finding]:
    """R7: nobody approves an RFC that they wrote or whose entries they maintain."""
    for rfc in case.tree.of("rfc"):
        own = {bare(name) for key in ("authors", "maintainers") for name in rfc.data.get(key, [])}
        for document, place, approval in approvals_of(case.tree, rfc.data.get("number", -1)):
            if bare(approval.get("by", "")) in own:
                message = "%s is an author or a maintainer of this RFC" % approval["by"]
                yield document.finding("R7", message, "ask somebody else", "approval", place, "by")


def figures(case: RfcCase) -> Iterator[Finding]:
    """R9: figures in an RFC are in the matrix or follow from it, and sizes are in a source's words."""
    for rfc in case.tree.of("rfc"):
        entries = case.entries_of(rfc)
        known, said = _known_figures(case, entries), _said(rfc, entries)
        for number, line in enumerate(_prose(case, rfc), 1):
            for match in _FIGURE.finditer(line):
                if int(match.group(1)) not in known:
                    message = "%s is in no source and does not follow from one" % match.group(1)
                    fix = "correct it, or state it in the entry or in matrix/model.toml with a source"
                    yield Finding(rfc.path, number, "R9", message, fix)
            for match in _SIZE.finditer(line):
                if "%s %s" % match.groups() not in said:
                    message = "no source of it says %s" % match.group(0)
                    fix = "put the figure into `says` of its source, or write the bytes"
                    yield Finding(rfc.path, number, "R9", message, fix)


def _prose(case: RfcCase, rfc: Document) -> list[str]:
    """The lines of an RFC, emptied where a line is itself the words of a source or an address."""
    lines = case.text(rfc).splitlines()
    return ["" if line.startswith(("says =", "url =")) else re.sub(r"https://\S+", "", line) for line in lines]


def _said(rfc: Document, entries: list[Document]) -> set[str]:
    texts = [item.get("says", "") for item in rfc.data.get("upstream", [])]
    for entry in entries:
        for table in ("source", "configuration"):
            texts += [item.get("says", "") for item in entry.data.get(table, [])]
    return {"%s %s" % pair for text in texts for pair in _SIZE.findall(text)}


def _known_figures(case: RfcCase, entries: list[Document]) -> set[int]:
    known: set[int] = set()
    for model in case.tree.of("model"):
        known |= {value for value in model.data.values() if isinstance(value, int)}
        known |= {part.get("bytes", 0) for part in model.data.get("part", [])}
        payload = model.data.get("payload_bytes", 0)
        for entry in entries:
            for item in entry.data.get("configuration", []):
                each, total = item.get("memory_bytes", 0), item.get("count", 0) * item.get("memory_bytes", 0)
                known |= {each, total, abs(total - payload)}
    return known


def pinned(case: RfcCase) -> Iterator[Finding]:
    """R10: upstream is named by a pull request or a commit, which nothing else can become."""
    places: list[tuple[Document, dict[str, Any], tuple[Any, ...]]] = []
    for rfc in case.tree.of("rfc"):
        places += [(rfc, item, ("upstream", n, "url")) for n, item in enumerate(rfc.data.get("upstream", []))]
    for entry in case.tree.of("entry"):
        sources = enumerate(entry.data.get("source", []))
        places += [
            (entry, s, ("source", n, "url")) for n, s in sources if s.get("kind") == "upstream-rfc" and "url" in s
        ]
    for document, item, path in places:
        if "url" in item and not _PINNED.fullmatch(item["url"]):
            message = "%s is neither a pull request nor a commit of upstream" % item["url"]
            yield document.finding("R10", message, "write .../pull/NUMBER, or .../commit/ and 40 digits", *path)


def blockers(case: RfcCase) -> Iterator[Finding]:
    """R11: what is proposed says what is missing, each point by its own name; what is supported has nothing missing."""
    for rfc in case.tree.of("rfc"):
        items, statuses = rfc.data.get("blocker", []), case.statuses_of(rfc)
        names = [item.get("id") for item in items]
        for number, name in enumerate(names):
            if name is not None and name in names[:number]:
                message = "blocker %r is there twice" % name
                yield rfc.finding("R11", message, "choose another id", "blocker", number, "id")
        if "blocker" not in rfc.data and set(statuses) & set(PROPOSED):
            yield rfc.finding("R11", "nothing is said to be missing", "add a [[blocker]] with id, kind and text")
        if items and "supported" in statuses:
            yield rfc.finding("R11", "a blocker is open, and its entries are supported", "close it first", "blocker", 0)
