"""What is generated of the RFC path: the index in rfcs/README.md, and rules, gates and steps in docs/rfc.md."""

from __future__ import annotations

import re
from collections.abc import Callable

from deepinfer.errors import DeepInferError
from deepinfer.matrix.blocks import table
from deepinfer.matrix.gates import COVERS, GATES
from deepinfer.matrix.load import Tree
from deepinfer.matrix.transitions import STEPS, next_steps


class PageMarkersBroken(DeepInferError):
    """A page of the RFC path lacks a pair of markers, or has one twice."""

    code = "DI401"
    exit_code = 1


def rfc_pages(tree: Tree) -> dict[str, str]:
    """Path to text of each page."""
    return {name: _filled(tree, name, blocks) for name, blocks in _PAGES.items()}


def _filled(tree: Tree, name: str, blocks: dict[str, Callable[[Tree], str]]) -> str:
    fix = "git checkout -- %s" % name
    try:
        text = (tree.root / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PageMarkersBroken("%s cannot be read: %s" % (name, error), fix=fix) from None
    for block, make in blocks.items():
        begin, end = "<!-- rfcs:begin %s -->" % block, "<!-- rfcs:end %s -->" % block
        parts = re.split("%s.*?%s" % (re.escape(begin), re.escape(end)), text, flags=re.DOTALL)
        if len(parts) != 2:
            raise PageMarkersBroken("%s needs exactly one pair of markers for the block %r" % (name, block), fix=fix)
        text = "%s%s\n%s\n%s%s" % (parts[0], begin, make(tree), end, parts[1])
    return text


def _index(tree: Tree) -> str:
    statuses = {document.data["id"]: document.data["status"] for document in tree.of("entry")}
    rows = []
    for rfc in sorted(tree.of("rfc"), key=lambda document: int(document.data["number"])):
        data = rfc.data
        entries = ", ".join("`%s`: %s" % (name, statuses.get(name, "missing")) for name in data["entries"])
        links = ["[%s](%s)" % ("/".join(item["url"].split("/")[-2:]), item["url"]) for item in data.get("upstream", [])]
        open_points = ", ".join("%s (%s)" % (item["id"], item["kind"]) for item in data.get("blocker", []))
        title = "[%d: %s](%s)" % (data["number"], data["title"], rfc.path.rpartition("/")[2])
        rows.append((title, entries or "the process itself", open_points or "none", ", ".join(links) or "none"))
    return table(("RFC", "entries", "open blockers", "upstream"), rows)


def _steps(tree: Tree) -> str:
    return table(("from", "to"), [(name, next_steps(name)) for name in STEPS])


def _gates(tree: Tree) -> str:
    rows = []
    for name, (promise, command) in GATES.items():
        shown = command % {"entry": "ID", "rfc": "N"} or "computed by `rfc check`"
        rows.append((name, promise, "`%s`" % shown if shown.startswith("python") else shown))
    return table(("gate", "passed when", "closed by"), rows)


def _covers(tree: Tree) -> str:
    rows = [
        (lane, gate, ", ".join("`%s`" % p for p in globs))
        for lane, its in COVERS.items()
        for gate, globs in its.items()
    ]
    return table(("lane", "gate", "files that evidence is bound to"), rows)


def _rules(tree: Tree) -> str:
    from deepinfer.matrix.rfc_check import RULES, WARNINGS

    rules = [(name, promise) for name, (promise, _) in RULES.items()]
    return "%s\n\n%s" % (table(("rule", "promise"), rules), table(("warning", "meaning"), list(WARNINGS.items())))


_PAGES: dict[str, dict[str, Callable[[Tree], str]]] = {
    "rfcs/README.md": {"index": _index},
    "docs/rfc.md": {"steps": _steps, "gates": _gates, "covers": _covers, "rules": _rules},
}
