"""Reads every file of the matrix and validates each by the schema. All findings are collected; none hides another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.errors import DeepInferError, nearest
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.imports import toml
from deepinfer.matrix.index import source_names
from deepinfer.matrix.lines import key_lines
from deepinfer.matrix.rfc import NoFrontMatter, front_matter
from deepinfer.matrix.validate import Document, validate

ROOT = Path(__file__).resolve().parent.parent
APPROVALS = "rfcs/approvals"
SINGLE = ("baseline", "model", "guidance", "variables")


class NoTree(DeepInferError):
    """The tools work on the files of a checkout, and there are none here."""

    code = "DI111"


class Tree(NamedTuple):
    """All files of the matrix, and what is wrong with them."""

    root: Path
    documents: list[Document]
    findings: list[Finding]

    def of(self, kind: str) -> list[Document]:
        """The documents of one kind that could be read."""
        return [document for document in self.documents if document.kind == kind and document.data]


def load(root: Path | str | None = None) -> Tree:
    """Every file below ``root`` (default: this checkout), validated one by one; see rules.py for what spans files."""
    root = ROOT if root is None else Path(root)
    if not (root / "matrix" / "entries").is_dir() or not (root / "rfcs").is_dir():
        raise NoTree(
            "there is no matrix to read below %s" % root,
            why="an installed package ships the compiled index alone",
            fix="run it in a checkout of the repository, or name one: python -m deepinfer.matrix --root FOLDER list",
        )
    tree = Tree(root, [], [])
    approvals = sorted((root / APPROVALS).glob("*.toml"))  # not compiled, so not among the sources of the index
    for name in [*source_names(str(root)), *("%s/%s" % (APPROVALS, path.name) for path in approvals)]:
        _read(tree, name)
    present = {document.kind for document in tree.documents}
    for kind in SINGLE:
        if kind not in present:
            path = "matrix/%s.toml" % kind
            tree.findings.append(Finding(path, 1, "M3", "the file is missing", "git checkout -- %s" % path))
    return tree


def _kind_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    if folder != "matrix":
        return {"matrix/entries": "entry", APPROVALS: "approval"}.get(folder, "rfc")
    stem = file[: -len(".toml")]
    return stem if stem in SINGLE else None


def _read(tree: Tree, name: str) -> None:
    kind = _kind_of(name)
    if kind is None:
        message = "no file of this name is known%s" % nearest(Path(name).stem, list(SINGLE))
        fix = "move an entry to matrix/entries/, or delete the file"
        tree.findings.append(Finding(name, 1, "M2", message, fix))
        return
    try:
        text = (tree.root / name).read_text(encoding="utf-8")
        data = _parse(front_matter(text) if kind == "rfc" else text)
    except NoFrontMatter as error:
        tree.findings.append(Finding(name, 1, "M1", str(error), "copy the block at the top of rfcs/template.md"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        tree.findings.append(Finding(name, line, "M1", "not UTF-8 at byte %d" % error.start, "save the file as UTF-8"))
    except (ValueError, RecursionError) as error:
        tree.findings.append(_syntax(name, str(error)))
    except OSError as error:
        tree.findings.append(Finding(name, 1, "M1", "cannot be read: %s" % error.strerror, "restore the file"))
    else:
        document = Document(name, kind, data, key_lines(text))
        clean, findings = validate(document)
        tree.documents.append(document._replace(data=clean))
        tree.findings.extend(findings)
        return
    tree.documents.append(Document(name, kind, {}, {}))


def _parse(text: str) -> dict[str, Any]:
    data: dict[str, Any] = toml().loads(text)
    return data


def _syntax(name: str, message: str) -> Finding:
    place = re.search(r"line (\d+)", message)
    return Finding(name, int(place.group(1)) if place else 1, "M1", "not TOML: %s" % message, "mend the syntax there")
