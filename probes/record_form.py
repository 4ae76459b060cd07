"""The form of a record: what each key holds, and the errors of a file that has another form."""

from __future__ import annotations

from deepinfer.errors import DeepInferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
_DEEPEST = 50  # levels; a record of ours has six
_SHAPE = {
    "machine": str,
    "system": str,
    "python": dict,
    "env": dict,
    "files": dict,
    "dev": list,
    "listed": list,
    "folders": dict,
    "absent": list,
    "unknown": dict,
    "cmds": dict,
    "libs": dict,
}


class RecordUnreadable(DeepInferError):
    """The file given to ``--replay`` cannot be read or is no JSON object."""

    code = "DI201"


class RecordMalformed(DeepInferError):
    """A key of the record has the wrong type."""

    code = "DI202"


class RecordTooNew(DeepInferError):
    """The record was written by a newer probe."""

    code = "DI203"


def check_record(record: Any, path: str = "record") -> dict[str, Any]:
    """``record`` itself if its shape is right. Unknown keys are left alone: they may come from a newer minor form."""
    fix = "write a new record with: python3 -m deepinfer.probe --record FILE"
    if not isinstance(record, dict):
        raise RecordMalformed("%s: the record is no JSON object" % path, fix=fix)
    schema = record.get("schema", SCHEMA)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordMalformed("%s: schema is %r, not a positive integer" % (path, schema), fix=fix)
    if schema > SCHEMA:
        raise RecordTooNew(
            "%s has schema %d; this probe reads up to %d" % (path, schema, SCHEMA),
            fix="judge it with the version of DeepInfer that wrote it, or a newer one",
        )
    if "machine" not in record:
        raise RecordMalformed("%s: key 'machine' is missing" % path, fix=fix)
    for key, kind in _SHAPE.items():
        if key in record and not isinstance(record[key], kind):
            raise RecordMalformed("%s: key %r is no %s" % (path, key, kind.__name__), fix=fix)
    _check_values(record, path, fix)
    if _deeper_than(record, _DEEPEST):
        raise RecordMalformed("%s: the record is nested deeper than any probe writes" % path, fix=fix)
    return record


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    while level and limit:  # by levels: recursion is what a deep one would break
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        limit -= 1
    return bool(level)


def _check_values(record: dict[str, Any], path: str, fix: str) -> None:
    for key in ("env", "files", "unknown"):
        for name, value in record.get(key, {}).items():
            if not isinstance(value, str):
                raise RecordMalformed("%s: %s[%r] is no text" % (path, key, name), fix=fix)
    for key in ("dev", "listed", "absent"):
        if not all(isinstance(item, str) for item in record.get(key, [])):
            raise RecordMalformed("%s: %s holds something that is no text" % (path, key), fix=fix)
    for folder, names in record.get("folders", {}).items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RecordMalformed("%s: folders[%r] is no list of names" % (path, folder), fix=fix)
    for words, answer in record.get("cmds", {}).items():
        fine = isinstance(answer, dict) and isinstance(answer.get("rc", ""), (int, type(None)))
        if not fine or not all(isinstance(answer.get(key, ""), str) for key in ("out", "err")):
            raise RecordMalformed("%s: cmds[%r] is no {rc, out, err}" % (path, words), fix=fix)
    for name, answer in record.get("libs", {}).items():
        if not isinstance(answer, dict):
            raise RecordMalformed("%s: libs[%r] is no object" % (path, name), fix=fix)
