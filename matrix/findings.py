"""A finding: one thing wrong with one line of one file, and how to mend it."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Sorts by place, so a report reads in the order of the files."""

    path: str
    line: int
    rule: str
    message: str
    fix: str

    def __str__(self) -> str:
        return "%s:%d: %s: %s\n  fix: %s" % self
