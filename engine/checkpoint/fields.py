"""Typed access to the keys of a config section: each wrong key becomes a problem, and reading goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from deepinfer.engine.checkpoint.errors import ConfigRefused, Problem
from deepinfer.errors import nearest

FILE = "config.json"
LARGEST = 2**31 - 1
_ABSENT = object()


class Section:
    """One object of config.json. ``sound`` turns false when a value is missing or of a wrong type or range.

    Every reader returns a value of the right type, a harmless one where the key is wrong, so that a caller can read on
    and report all that is wrong at once.
    """

    def __init__(self, name: str, values: Any, problems: list[Problem]) -> None:
        self.name = name
        self.problems = problems
        self.sound = self.is_there = isinstance(values, dict)
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self.read: set[str] = set()
        if not self.is_there:
            found = "no such section" if values is None else "%r found" % (values,)
            self._report("", "%s, an object needed" % found[:80])

    def integer(self, key: str, low: int = 1, high: int = LARGEST, default: Any = _ABSENT) -> int:
        """An integer of [low, high]."""
        value = self._value(key, default)
        if value is _ABSENT:
            return low
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self._wrong(key, value, "an integer from %d to %d" % (low, high))
        return low

    def optional_integer(self, key: str, low: int, high: int = LARGEST) -> int | None:
        """An integer of [low, high], or None where the key is null, absent or negative."""
        value = self.values.get(key)
        negative = isinstance(value, int) and not isinstance(value, bool) and value < 0
        if value is None or negative:
            self.read.add(key)
            return None
        return self.integer(key, low, high)

    def number(self, key: str, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number greater than ``low`` and at most ``high``."""
        value = self._value(key, _ABSENT)
        if value is _ABSENT:
            return high
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and low < value <= high:
            return float(value)
        self._wrong(key, value, "a number greater than %g and at most %g" % (low, high))
        return high

    def flag(self, key: str, default: Any = _ABSENT) -> bool:
        """true or false."""
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        if value is not _ABSENT:
            self._wrong(key, value, "true or false")
        return False

    def integers(self, key: str, low: int = 0, high: int = LARGEST, default: Any = _ABSENT) -> tuple[int, ...]:
        """A list of integers of [low, high], at most 4096 of them."""
        value = self._value(key, default)
        if value is _ABSENT:
            return ()
        if isinstance(value, (list, tuple)) and len(value) <= 4096:
            if all(isinstance(item, int) and not isinstance(item, bool) and low <= item <= high for item in value):
                return tuple(value)
        self._wrong(key, value, "a list of integers from %d to %d" % (low, high))
        return ()

    def exactly(self, key: str, needed: Any, default: Any = _ABSENT) -> None:
        """The key must have this value, of this type; ``default`` where it may be absent."""
        value = self._value(key, default)
        if value is _ABSENT or _same(value, needed):
            return
        what = "%s found, %s needed" % (_short(value), _short(needed))
        self._report(key, what, "this engine computes no other; use a checkpoint with %s" % _short(needed))

    def choice(self, key: str, names: Iterable[str], default: str) -> str:
        """One of ``names``."""
        value = self._value(key, default)
        if value in tuple(names):
            return str(value)
        self._wrong(key, value, "one of %s" % ", ".join(names))
        return default

    def section(self, key: str) -> Section:
        """The object under ``key``."""
        self.read.add(key)
        return Section(self._path(key), self.values.get(key), self.problems)

    def finish(self, ignored: Iterable[str]) -> None:
        """Report every key that nobody read: it may change what has to be computed."""
        known = self.read | set(ignored)
        for key in self.values:
            if key not in known:
                what = "unknown key%s" % nearest(key, sorted(self.read))
                self._report(key, what, "remove it if it has no meaning; the keys are those of the release's config")

    def _value(self, key: str, default: Any) -> Any:
        self.read.add(key)
        if key in self.values:
            return self.values[key]
        if default is _ABSENT and self.is_there:
            self.sound = False
            self._report(key, "missing", "add it; the release's config.json has it")
        return default

    def _wrong(self, key: str, value: Any, needed: str) -> None:
        self.sound = False
        self._report(key, "%s found, %s needed" % (_short(value), needed))

    def _report(self, key: str, what: str, fix: str = "") -> None:
        fix = fix or "take config.json from where the checkpoint came from"
        self.problems.append(Problem(ConfigRefused, FILE, self._path(key), what, fix))

    def _path(self, key: str) -> str:
        return ".".join(part for part in (self.name, key) if part)


def _same(value: Any, needed: Any) -> bool:
    """Equal, and a flag is no number."""
    if isinstance(value, list) and isinstance(needed, list):
        return len(value) == len(needed) and all(_same(one, other) for one, other in zip(value, needed))
    return isinstance(value, bool) == isinstance(needed, bool) and bool(value == needed)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
