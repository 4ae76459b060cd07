"""Whether one value has the form that the schema declares for it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

from deepinfer.matrix.specifier import SpecifierError, compile_spec

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CAPABILITY = re.compile(r"[1-9][0-9]*\.[0-9]")
_PCI = re.compile(r"([0-9a-f]{4}|ub):[0-9a-f]{4}")
_SOC = re.compile(r"[a-z0-9_-]+\*?")
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any, pattern: re.Pattern[str] | None = None) -> bool:
    if not isinstance(value, list) or not all(_text(item) for item in value) or len(set(value)) != len(value):
        return False
    return pattern is None or all(pattern.fullmatch(item) for item in value)


def _table(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, dict) and all(pattern.fullmatch(key) and _text(item) for key, item in value.items())


def _toolkit(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"name", "spec"}
        and value["name"] in ("cuda", "cann")
        and _text(value["spec"])
    )


FORMS: dict[str, Callable[[Any], bool]] = {
    "schema": lambda value: _integer(value) and value == 1,
    "id": lambda value: isinstance(value, str) and _ID.fullmatch(value) is not None,
    "title": lambda value: _text(value) and len(value) <= 60,
    "string": _text,
    "strings": _texts,
    "count": lambda value: _integer(value) and value >= 1,
    "boolean": lambda value: isinstance(value, bool),
    "date": lambda value: isinstance(value, dt.date) and not isinstance(value, dt.datetime),
    "url": lambda value: isinstance(value, str) and re.fullmatch(r"https://\S+", value) is not None,
    "release": lambda value: isinstance(value, str) and _RELEASE.fullmatch(value) is not None,
    "spec": lambda value: isinstance(value, str),
    "specs": lambda value: _table(value, re.compile("gcc|clang")) and bool(value),
    "toolkit": _toolkit,
    "capabilities": lambda value: _texts(value, _CAPABILITY),
    "pci": lambda value: _table(value, _PCI),
    "socs": lambda value: _texts(value, _SOC),
}


def has_form(kind: str, value: Any) -> bool:
    """Whether ``value`` is what ``kind`` of the schema describes (version bounds: see :func:`bad_bounds`)."""
    return FORMS[kind](value)


def bad_bounds(kind: str, value: Any) -> list[SpecifierError]:
    """What is wrong with the version bounds in a value that has the form of ``kind``."""
    texts = {"spec": lambda: [value], "specs": lambda: list(value.values()), "toolkit": lambda: [value["spec"]]}
    errors = []
    for text in texts.get(kind, list)():
        try:
            compile_spec(text)
        except SpecifierError as error:
            errors.append(error)
    return errors
