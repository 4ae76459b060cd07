"""On which line of a TOML text a key stands. TOML parsers do not tell, and a finding without a line is half a finding.

A scan, not a parser: it knows table headers, keys at the start of a line and the ends of multi-line strings. What it
cannot place falls back to the line of the nearest table above, which is where a reader looks next.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")

Path = tuple[str, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key path; a repeated table counts its items, as in ``("source", "0", "id")``."""
    lines: dict[Path, int] = {}
    counts: dict[str, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            if quote in line:
                quote = ""
            continue
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header:
            table = _enter(header.group(1), header.group(2), counts)
            lines.setdefault(table, number)
            lines.setdefault(table[:1], number)
        elif key:
            lines.setdefault(table + _parts(key.group(1)), number)
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                quote = mark
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Line of ``path``, or of the nearest table around it, or 1."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _enter(brackets: str, name: str, counts: dict[str, int]) -> Path:
    if brackets == "[":
        return _parts(name)
    counts[name] = counts.get(name, -1) + 1
    return (*_parts(name), str(counts[name]))


def _parts(name: str) -> Path:
    if name[:1] in "\"'":
        return (name[1:-1],)
    return tuple(part.strip() for part in name.split("."))
