"""What the rules of the RFC path look at: this tree, the one it is compared with, the evidence, and the day."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, NamedTuple

from deepinfer.matrix.evidence import Evidence
from deepinfer.matrix.load import Tree
from deepinfer.matrix.rfc import number_of
from deepinfer.matrix.validate import Document

BLANK = "FILL:"
SECTIONS = ("Hardware facts", "Plan", "Capacity", "What is missing")


class RfcCase(NamedTuple):
    """``compiled`` are the entries as compiled, none if the matrix has findings and so cannot be.

    ``base`` and ``base_evidence`` (paths) are those of the revision that ``--base`` names, or None.
    """

    tree: Tree
    evidence: list[Evidence]
    today: dt.date
    compiled: list[dict[str, Any]]
    base: Tree | None = None
    base_evidence: list[str] | None = None

    def text(self, document: Document) -> str:
        """The whole file, prose included."""
        return (self.tree.root / document.path).read_text(encoding="utf-8")

    def entries_of(self, rfc: Document) -> list[Document]:
        """The entries that an RFC lists and that exist."""
        names = rfc.data.get("entries", [])
        return [document for document in self.tree.of("entry") if document.data.get("id") in names]

    def statuses_of(self, rfc: Document) -> list[str]:
        """Their statuses, each once."""
        return sorted({entry.data["status"] for entry in self.entries_of(rfc) if "status" in entry.data})

    def rfc_of(self, number: int) -> Document | None:
        """The RFC with that number."""
        return next((item for item in self.tree.of("rfc") if item.data.get("number") == number), None)


def approvals_number(document: Document) -> int | None:
    """The RFC that a file of approvals is about; None if its name is not NNNN.toml."""
    return number_of(document.path.rpartition("/")[2].replace(".toml", "-x.md"))


def approvals_of(tree: Tree, number: int) -> list[tuple[Document, int, dict[str, Any]]]:
    """(file, position, approval) of an RFC."""
    files = [document for document in tree.of("approval") if approvals_number(document) == number]
    return [(item, n, approval) for item in files for n, approval in enumerate(item.data.get("approval", []))]


def sections(text: str) -> dict[str, str]:
    """Heading to text of every ``##`` section; HTML comments do not count as text."""
    body = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    parts = re.split(r"(?m)^## +(.+?) *$", body)
    return {heading: content.strip() for heading, content in zip(parts[1::2], parts[2::2], strict=True)}


def bare(name: str) -> str:
    """A person's name as it is compared: ``@Ada`` and ``ada`` are one."""
    return name.strip().lstrip("@").casefold()
