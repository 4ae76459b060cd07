"""Compares two compiled matrices. What has no words of its own here is still told, as a changed value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Said = Callable[[Any], str]


class Change(NamedTuple):
    """One thing that is different: of what, which field, before, after, and the sentence for people."""

    subject: str
    field: str
    before: Any
    after: Any
    says: str


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Everything that differs, entries first. Digests and the note on who wrote the file say nothing new."""
    found = _entries(_by_id(old["entries"]), _by_id(new["entries"]))
    found += _rfcs(old["rfcs"], new["rfcs"])
    told = {"entries", "rfcs", "sources", "generated", "schema"}
    for key in sorted((old.keys() | new.keys()) - told):
        before, after = _opened(key, old.get(key)), _opened(key, new.get(key))
        if isinstance(before, list) and isinstance(after, list) and _all_named([*before, *after]):
            before, after = _by_id(before), _by_id(after)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _fields(key, before, after)
        elif before != after:
            found.append(_changed(key, key, before, after))
    return found


def _opened(key: str, value: Any) -> Any:
    # The parts of the model are a list of names and bytes: each is a figure of its own.
    if key != "model" or not isinstance(value, dict):
        return value
    rest = {name: item for name, item in value.items() if name != "parts"}
    return {**rest, **{"bytes of %(name)s" % part: part["bytes"] for part in value.get("parts", [])}}


def _entries(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            found.append(_came_or_went("entry", name, before, after, lambda entry: "%(title)s, %(status)s" % entry))
            continue
        # Nested tables are told field by field, and the rest as it stands in the index.
        found += _fields(name, _flat(before), _flat(after))
        found += _members(
            name, "configuration", _by_id(before.get("configurations", [])), _by_id(after["configurations"]), _says
        )
    return found


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in entry.items() if key not in ("match", "require", "configurations")}
    for table in ("match", "require"):
        flat.update({"%s.%s" % (table, key): value for key, value in entry.get(table, {}).items()})
    return flat


def _rfcs(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    found = []
    for number in sorted(old.keys() | new.keys(), key=lambda number: (len(number), number)):
        name, before, after = "RFC %s" % number, old.get(number), new.get(number)
        if before is None or after is None:
            found.append(_came_or_went("rfc", name, before, after, lambda rfc: str(rfc["title"])))
            continue
        plain = [{key: value for key, value in rfc.items() if key != "blockers"} for rfc in (before, after)]
        found += _fields(name, plain[0], plain[1])
        closed = _members(name, "blocker", _by_id(before.get("blockers", [])), _by_id(after["blockers"]), _says)
        found += [_as_blocker(change) for change in closed]
    return found


def _as_blocker(change: Change) -> Change:
    # A blocker is opened and closed, not added and removed.
    words = change.says.replace("blocker added", "blocker opened").replace("blocker removed", "blocker closed")
    return change._replace(says=words)


def _fields(subject: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    found = []
    for key in sorted(old.keys() | new.keys(), key=lambda key: (key != "status", key)):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, list) and isinstance(after, list) and _all_text([*before, *after]):
            found.append(_list_change(subject, key, before, after))
        else:
            found.append(_changed(subject, key, before, after))
    return found


def _members(subject: str, kind: str, old: dict[str, Any], new: dict[str, Any], say: Said) -> list[Change]:
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        field = "%s.%s" % (kind, name)
        if before is None or after is None:
            deed = "added" if before is None else "removed"
            found.append(
                Change(subject, field, before, after, "%s %s: %s: %s" % (kind, deed, name, say(after or before)))
            )
            continue
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                found.append(_changed(subject, "%s.%s" % (field, key), before.get(key), after.get(key)))
    return found


def _came_or_went(field: str, subject: str, before: Any, after: Any, say: Said) -> Change:
    deed = "added" if before is None else "removed"
    return Change(subject, field, before, after, "%s: %s" % (deed, say(after or before)))


def _changed(subject: str, field: str, before: Any, after: Any) -> Change:
    return Change(subject, field, before, after, "%s: %s -> %s" % (field, _value(before), _value(after)))


def _list_change(subject: str, field: str, before: list[str], after: list[str]) -> Change:
    parts = ["+%s" % item for item in after if item not in before] + [
        "-%s" % item for item in before if item not in after
    ]
    return Change(subject, field, before, after, "%s: %s" % (field, ", ".join(parts) or "in another order"))


def _says(item: dict[str, Any]) -> str:
    return str(item.get("says") or item.get("text") or _value(item))


def _value(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if "bounds" in value and "text" in value:  # a compiled version bound
            return str(value["text"])
        if value.keys() == {"name", "spec"}:
            return "%s %s" % (value["name"], _value(value["spec"]))
        if all(isinstance(item, dict) and "bounds" in item for item in value.values()):
            return ", ".join("%s %s" % (name, _value(item)) for name, item in sorted(value.items()))
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _by_id(items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {str(item.get("id", item.get("name"))): item for item in items}


def _all_named(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and "id" in item for item in items)


def _all_text(items: list[Any]) -> bool:
    return all(isinstance(item, str) for item in items)
