"""Writes what is generated from the matrix, or says what of it is out of date. A pure function of the tree."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deepinfer.errors import DeepInferError
from deepinfer.matrix.blocks import BLOCKS
from deepinfer.matrix.compiled import index_of, index_text
from deepinfer.matrix.docs import docs_text
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.load import Tree, load
from deepinfer.matrix.page import page_text
from deepinfer.matrix.rfc_pages import rfc_pages
from deepinfer.matrix.rules import check


class Findings(DeepInferError):
    """The matrix breaks its own rules, so nothing may be rendered from it."""

    code = "DI113"
    exit_code = 1

    def __init__(self, findings: list[Finding]) -> None:
        count = len(findings)
        what = "the matrix has %d finding%s" % (count, "" if count == 1 else "s")
        super().__init__(what, fix="mend each as its own fix line says; docs/matrix.md explains fields and rules")
        self.findings = findings


class MarkersBroken(DeepInferError):
    """README.md lacks a pair of markers, or has one twice, so there is no place to write a block to."""

    code = "DI114"
    exit_code = 1


class NotWritten(DeepInferError):
    """A generated file cannot be written where it belongs."""

    code = "DI115"
    exit_code = 1


def checked(root: Path | str | None = None) -> Tree:
    """The tree below ``root``; raises :class:`Findings` if anything is wrong with it."""
    tree = load(root)
    findings = check(tree)
    if findings:
        raise Findings(findings)
    return tree


def rendered(tree: Tree) -> dict[str, str]:
    """Path to text of every generated file."""
    readme = tree.root / "README.md"
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MarkersBroken("README.md cannot be read: %s" % error, fix="git checkout -- README.md") from None
    return {
        "matrix/index.json": index_text(tree),
        "README.md": _fill(text, tree),
        "docs/matrix.md": docs_text(),
        **rfc_pages(tree),
        "site/index.html": page_text(tree),
    }


def render(root: Path | str | None = None, *, write: bool = True) -> list[str]:
    """Paths whose text differed from what the matrix says; they are mended unless ``write`` is false."""
    tree = checked(root)
    changed = []
    for name, text in rendered(tree).items():
        path = tree.root / name
        if not path.is_file() or path.read_bytes() != text.encode("utf-8"):
            changed.append(name)
            if write:
                _replace(path, text)
    return changed


def _fill(text: str, tree: Tree) -> str:
    index = index_of(tree)
    for name, block in BLOCKS.items():
        begin, end = "<!-- matrix:begin %s -->" % name, "<!-- matrix:end %s -->" % name
        pattern = re.compile("%s.*?%s" % (re.escape(begin), re.escape(end)), re.DOTALL)
        if text.count(begin) != 1 or text.count(end) != 1 or not pattern.search(text):
            raise MarkersBroken(
                "README.md needs exactly one pair of markers for the block %r" % name,
                fix="put the lines %s and %s, in this order, where the block belongs" % (begin, end),
            )
        filled = "%s\n%s\n%s" % (begin, block(index, tree), end)
        text = filled.join(pattern.split(text, maxsplit=1))
    return text


def _replace(path: Path, text: str) -> None:
    # A reader must never see half a file: the probe may run while this does.
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(text.encode("utf-8"))
        os.replace(draft, path)
    except OSError as error:
        raise NotWritten("cannot write %s: %s" % (path, error.strerror), fix="make the folder writable") from None
