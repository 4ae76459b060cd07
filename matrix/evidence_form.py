"""The form of evidence: canonical JSON, closed keys, integers and texts only, and a digest over all of it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from deepinfer.errors import nearest

SCHEMA = 1
OUTCOMES = ("pass", "fail", "error")
CHECK_OUTCOMES = ("pass", "fail", "skip")  # skip: not judged, and the note says why
ATTESTERS = ("project-runner", "maintainer", "contributor")
NAME = re.compile(r"([a-z]+)\.([0-9]{8}T[0-9]{6}Z)\.([0-9a-f]{8})\.json")
_SHA256 = r"[0-9a-f]{64}"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
# key -> what it holds: a type, a pattern of a text, a tuple of words, a table of keys, or a list of one of these
Form = Any
_TEXT: Form = str
KEYS: dict[str, Form] = {
    "schema": int,
    "gate": _TEXT,
    "entry": _TEXT,
    "lane": ("bringup", "wheel"),
    "outcome": OUTCOMES,
    "commit": re.compile(r"[0-9a-f]{40}"),
    "dirty": bool,
    "source_digest": re.compile("sha256:" + _SHA256),
    "tool": {"name": _TEXT, "version": _TEXT},
    "argv": [_TEXT],
    "started": re.compile(_TIME),
    "finished": re.compile(_TIME),
    "host": {
        "fingerprint": re.compile(_SHA256),
        "names": [_TEXT],
        "pci": [_TEXT],
        "arch": [_TEXT],
        "memory_bytes": [int],
        "driver": _TEXT,
        "toolkit": _TEXT,
        "kernel": _TEXT,
        "machine": _TEXT,
        "container": bool,
    },
    "checks": [
        {"id": _TEXT, "outcome": CHECK_OUTCOMES, "measured": (int, str), "unit": _TEXT, "bound": _TEXT, "note": _TEXT}
    ],
    "artifacts": [{"name": _TEXT, "sha256": re.compile(_SHA256), "bytes": int}],
    "provenance": {"by": re.compile(r"@?[A-Za-z0-9][A-Za-z0-9-]*"), "kind": ATTESTERS},
    "digest": re.compile("sha256:" + _SHA256),
}


def canonical(document: dict[str, Any]) -> str:
    """The one text of a document: sorted keys, two blanks of indent, ASCII, a final line end."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def digest_of(document: dict[str, Any]) -> str:
    """Digest over everything in the document but the digest itself."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return "sha256:" + hashlib.sha256(canonical(rest).encode("ascii")).hexdigest()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its digest."""
    return {**document, "digest": digest_of(document)}


def file_name(document: dict[str, Any]) -> str:
    """``<entry>/<gate>.<UTC>.<host8>.json``, as the content says."""
    moment = re.sub(r"[-:]", "", document["finished"])
    return "%s/%s.%s.%s.json" % (document["entry"], document["gate"], moment, document["host"]["fingerprint"][:8])


def form_problems(value: Any, form: Form = None, path: str = "") -> list[str]:
    """Everything in which ``value`` differs from the form, in words."""
    form = KEYS if form is None else form
    if isinstance(form, dict):
        return _table_problems(value, form, path)
    if isinstance(form, list):
        if not isinstance(value, list):
            return ["%s is not a list" % path]
        return [text for n, item in enumerate(value) for text in form_problems(item, form[0], "%s[%d]" % (path, n))]
    if isinstance(form, tuple):
        if all(isinstance(word, str) for word in form):
            return (
                [] if isinstance(value, str) and value in form else ["%s is not one of: %s" % (path, ", ".join(form))]
            )
        fine = isinstance(value, form) and not isinstance(value, bool)
        return [] if fine else ["%s is neither an integer nor a text" % path]
    if isinstance(form, re.Pattern):
        fine = isinstance(value, str) and form.fullmatch(value) is not None
        return [] if fine else ["%s is not of the form %s" % (path, form.pattern)]
    fine = isinstance(value, form) and (form is not int or (not isinstance(value, bool) and value >= 0))
    return [] if fine else ["%s is no %s" % (path, {int: "integer", str: "text", bool: "true or false"}[form])]


def _table_problems(value: Any, form: dict[str, Form], path: str) -> list[str]:
    if not isinstance(value, dict):
        return ["%s is no object" % (path or "the file")]
    dot = path + "." if path else ""
    found = ["%s%s is missing" % (dot, key) for key in form if key not in value]
    for key, item in value.items():
        if key in form:
            found += form_problems(item, form[key], dot + key)
        else:
            found.append("unknown key %s%s%s" % (dot, key, nearest(key, list(form))))
    if not path and value.get("schema", SCHEMA) != SCHEMA:
        found.append("schema is not %d" % SCHEMA)
    return found
