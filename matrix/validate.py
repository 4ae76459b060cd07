"""Validates one file by the schema, and keeps of it what is well-formed, so that the rules can look at all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from deepinfer.errors import nearest
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.lines import line_of
from deepinfer.matrix.schema import ALWAYS, FILES, TABLES, Field
from deepinfer.matrix.values import bad_bounds, has_form
from deepinfer.matrix.vocabulary import KINDS

Path = tuple[object, ...]


class Document(NamedTuple):
    """One file as read: ``data`` is empty if it is not TOML (there is a finding then)."""

    path: str
    kind: str
    data: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def line(self, *path: object) -> int:
        """Line on which the key at ``path`` stands, or the table around it."""
        return line_of(self.lines, tuple(str(part) for part in path))

    def get(self, *path: object) -> Any:
        """The value at ``path``, or None where any part of the path is missing."""
        value: Any = self.data
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                return None
        return value

    def finding(self, rule: str, message: str, fix: str, *path: object) -> Finding:
        """A finding at the line of ``path``."""
        return Finding(self.path, self.line(*path), rule, message, fix)


def validate(document: Document) -> tuple[dict[str, Any], list[Finding]]:
    """What of the document is well-formed, and everything that is wrong with it by itself."""
    shape: dict[str, Any] = {}
    for field in FILES[document.kind]:
        _place(shape, field.name.split("."), field)
    found: list[Finding] = []
    for table, statuses in TABLES[document.kind].items():
        if table not in document.data and (statuses == ALWAYS or document.data.get("status") in statuses):
            form = ("[[%s]]" if table + "[]" in shape else "[%s]") % table
            found.append(document.finding("M3", "%s is missing" % form, "add a %s table" % form))
    return _walk(document, document.data, shape, (), found), found


def _place(shape: dict[str, Any], parts: list[str], field: Field) -> None:
    if len(parts) == 1:
        shape[parts[0]] = field
    else:
        _place(shape.setdefault(parts[0], {}), parts[1:], field)


def _walk(
    document: Document, table: dict[str, Any], shape: dict[str, Any], path: Path, found: list[Finding]
) -> dict[str, Any]:
    names = [name.removesuffix("[]") for name in shape]
    clean: dict[str, Any] = {}
    for key, value in table.items():
        here = (*path, key)
        before = len(found)
        if key not in names:
            fix = "remove it, or use one of: %s" % ", ".join(names)
            found.append(document.finding("M2", "unknown key %r%s" % (key, nearest(key, names)), fix, *here))
        elif key + "[]" in shape:
            clean[key] = _walk_items(document, value, shape[key + "[]"], here, found)
            continue
        elif isinstance(shape[key], Field):
            found.extend(_check_value(document, shape[key], value, here))
        elif isinstance(value, dict):
            clean[key] = _walk(document, value, shape[key], here, found)
            continue
        else:
            found.append(document.finding("M4", "%s is not a table" % key, "write it as [%s]" % key, *here))
        if len(found) == before:
            clean[key] = value
    _check_required(document, table, shape, path, found)
    return clean


def _check_required(
    document: Document, table: dict[str, Any], shape: dict[str, Any], path: Path, found: list[Finding]
) -> None:
    status = document.data.get("status")
    for name, field in shape.items():
        needed = isinstance(field, Field) and (field.required == ALWAYS or status in field.required)
        if needed and name not in table:
            found.append(document.finding("M3", "%s is missing" % field.name, "add %s: %s" % (name, field.doc), *path))


def _walk_items(
    document: Document, value: Any, shape: dict[str, Any], path: Path, found: list[Finding]
) -> list[dict[str, Any]]:
    name = path[-1]
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        found.append(document.finding("M4", "%s is not a list of tables" % name, "write [[%s]] tables" % name, *path))
        return []
    return [_walk(document, item, shape, (*path, number), found) for number, item in enumerate(value)]


def _check_value(document: Document, field: Field, value: Any, path: Path) -> list[Finding]:
    if not has_form(field.kind, value):
        message = "%s has another form than: %s" % (field.name, KINDS[field.kind])
        return [document.finding("M4", message, "rewrite it; it says: %s" % field.doc, *path)]
    if field.values and value not in field.values:
        message = "%s has no value %r%s" % (field.name, value, nearest(value, list(field.values)))
        return [document.finding("M4", message, "use one of: %s" % ", ".join(field.values), *path)]
    return [document.finding("M5", error.what, error.fix, *path) for error in bad_bounds(field.kind, value)]
