"""Reads every file of the matrix and validates each by the schema. All findings are collected; none hides another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.errors import DeepInferError, nearest
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.index import source_names
from deepinfer.matrix.lines import key_lines, line_of
from deepinfer.matrix.rfc import NoFrontMatter, front_matter
from deepinfer.matrix.schema import ALWAYS, FILES, KINDS, TABLES, Field
from deepinfer.matrix.values import bad_bounds, has_form

ROOT = Path(__file__).resolve().parent.parent
SINGLE = ("baseline", "model", "guidance", "variables")


class NoTree(DeepInferError):
    """The tools work on the files of a checkout, and there are none here."""

    code = "DI111"


class ToolMissing(DeepInferError):
    """A module that the matrix tools need is not installed."""

    code = "DI112"


class Document(NamedTuple):
    """One file as read: ``data`` is empty if it is not TOML (there is a finding then)."""

    path: str
    kind: str
    data: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def line(self, *path: object) -> int:
        """Line on which the key at ``path`` stands, or the table around it."""
        return line_of(self.lines, tuple(str(part) for part in path))

    def finding(self, rule: str, message: str, fix: str, *path: object) -> Finding:
        """A finding at the line of ``path``."""
        return Finding(self.path, self.line(*path), rule, message, fix)


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
            fix="git clone https://github.com/deepseek-ai/DeepInfer and run this in the clone",
        )
    tree = Tree(root, [], [])
    for name in source_names(str(root)):
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
        return "entry" if folder == "matrix/entries" else "rfc"
    stem = file[: -len(".toml")]
    return stem if stem in SINGLE else None


def _read(tree: Tree, name: str) -> None:
    kind = _kind_of(name)
    if kind is None:
        fix = "move an entry to matrix/entries/, or delete the file"
        tree.findings.append(Finding(name, 1, "M2", "no such file is known%s" % nearest(Path(name).stem, list(SINGLE)), fix))
        return
    try:
        text = (tree.root / name).read_text(encoding="utf-8")
        data = _parse(front_matter(text) if kind == "rfc" else text)
    except NoFrontMatter as error:
        tree.findings.append(Finding(name, 1, "M1", str(error), "copy the block at the top of rfcs/template.md"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        tree.findings.append(Finding(name, line, "M1", "not UTF-8 at byte %d" % error.start, "save the file as UTF-8"))
    except ValueError as error:
        tree.findings.append(_syntax(name, str(error)))
    except OSError as error:
        tree.findings.append(Finding(name, 1, "M1", "cannot be read: %s" % error.strerror, "restore the file"))
    else:
        document = Document(name, kind, data, key_lines(text))
        tree.documents.append(document)
        tree.findings.extend(_validate(document))
        return
    tree.documents.append(Document(name, kind, {}, {}))


def _parse(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:
        try:
            import tomli as tomllib
        except ImportError:
            fix = "pip install tomli packaging, or use Python 3.11 or newer"
            raise ToolMissing("the matrix tools need tomli before Python 3.11", fix=fix) from None
    return tomllib.loads(text)


def _syntax(name: str, message: str) -> Finding:
    place = re.search(r"line (\d+)", message)
    return Finding(name, int(place.group(1)) if place else 1, "M1", "not TOML: %s" % message, "mend the syntax there")


def _validate(document: Document) -> list[Finding]:
    shape: dict[str, Any] = {}
    for field in FILES[document.kind]:
        _place(shape, field.name.split("."), field)
    found: list[Finding] = []
    for table, statuses in TABLES[document.kind].items():
        if table not in document.data and (statuses == ALWAYS or document.data.get("status") in statuses):
            form = "[[%s]]" if table + "[]" in shape else "[%s]"
            found.append(document.finding("M3", "%s is missing" % form % table, "add a %s table" % form % table))
    _walk(document, document.data, shape, (), found)
    return found


def _place(shape: dict[str, Any], parts: list[str], field: Field) -> None:
    if len(parts) == 1:
        shape[parts[0]] = field
    else:
        _place(shape.setdefault(parts[0], {}), parts[1:], field)


def _walk(document: Document, table: dict[str, Any], shape: dict[str, Any], path: tuple[object, ...],
          found: list[Finding]) -> None:
    names = [name.removesuffix("[]") for name in shape]
    for key, value in table.items():
        here = (*path, key)
        if key not in names:
            fix = "remove it, or use one of: %s" % ", ".join(names)
            found.append(document.finding("M2", "unknown key %r%s" % (key, nearest(key, names)), fix, *here))
        elif key + "[]" in shape:
            _walk_items(document, value, shape[key + "[]"], here, found)
        elif isinstance(shape[key], Field):
            found.extend(_check_value(document, shape[key], value, here))
        elif isinstance(value, dict):
            _walk(document, value, shape[key], here, found)
        else:
            found.append(document.finding("M4", "%s is not a table" % key, "write it as [%s]" % key, *here))
    status = document.data.get("status")
    for name, field in shape.items():
        needed = isinstance(field, Field) and (field.required == ALWAYS or status in field.required)
        if needed and name not in table:
            found.append(document.finding("M3", "%s is missing" % field.name, "add %s: %s" % (name, field.doc), *path))


def _walk_items(document: Document, value: Any, shape: dict[str, Any], path: tuple[object, ...],
                found: list[Finding]) -> None:
    name = path[-1]
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        found.append(document.finding("M4", "%s is not a list of tables" % name, "write [[%s]] tables" % name, *path))
        return
    for number, item in enumerate(value):
        _walk(document, item, shape, (*path, number), found)


def _check_value(document: Document, field: Field, value: Any, path: tuple[object, ...]) -> list[Finding]:
    if not has_form(field.kind, value):
        message = "%s is not a %s" % (field.name, KINDS[field.kind])
        return [document.finding("M4", message, "write %s: %s" % (KINDS[field.kind], field.doc), *path)]
    if field.values and value not in field.values:
        message = "%s has no value %r%s" % (field.name, value, nearest(value, list(field.values)))
        return [document.finding("M4", message, "use one of: %s" % ", ".join(field.values), *path)]
    return [document.finding("M5", error.what, error.fix, *path) for error in bad_bounds(field.kind, value)]
