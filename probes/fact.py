"""Three-valued facts: a thing is present (with a value), absent, or unknown (with the reason).

The rule that everything here serves: unknown never turns into absent, and absent never into unknown.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Fact:
    """One thing looked for on a host. ``source`` says where the answer came from, ``reason`` why there is none."""

    __slots__ = ("reason", "source", "state", "value")

    def __init__(self, state: str, value: Any, reason: str, source: str) -> None:
        self.state = state
        self.value = value
        self.reason = reason
        self.source = source

    @property
    def is_present(self) -> bool:
        return self.state == "present"

    @property
    def is_absent(self) -> bool:
        return self.state == "absent"

    @property
    def is_unknown(self) -> bool:
        return self.state == "unknown"

    def __repr__(self) -> str:
        shown = self.reason if self.is_unknown else repr(self.value)
        return "<Fact %s %s from %s>" % (self.state, shown[:80], self.source)


def present(value: Any, source: str = "") -> Fact:
    """The thing is there and this is its value."""
    return Fact("present", value, "", source)


def absent(source: str = "") -> Fact:
    """The place was looked at and the thing is not there."""
    return Fact("absent", None, "", source)


def unknown(reason: str, source: str = "") -> Fact:
    """Nobody could look, or what was seen could not be read. ``reason`` is one short phrase."""
    return Fact("unknown", None, reason, source)
