"""Versions as integer tuples of their numeric head, and whether what follows makes them a pre-release."""

from __future__ import annotations

_PRE = ("alpha", "beta", "dev", "rc", "pre", "weekly", "t5", "b")  # CANN: 9.2.0-beta.2, 8.1.RC1.alpha001, 9.0.T501


class Version:
    """``head``: leading integers; ``pre``: what marks a pre-release, or an empty string; ``text``: as found."""

    __slots__ = ("head", "pre", "text")

    def __init__(self, head: tuple[int, ...], pre: str, text: str) -> None:
        self.head = head
        self.pre = pre
        self.text = text


def parse(text: str) -> Version | None:
    """``9.2.0-beta.2`` -> head (9, 2, 0), pre ``beta.2``. None if it does not begin with a number."""
    head: list[int] = []
    rest = text.strip()
    while True:
        digits = 0
        while digits < len(rest) and rest[digits].isdigit() and rest[digits].isascii():
            digits += 1
        if not digits or digits > 9:
            break
        head.append(int(rest[:digits]))
        rest = rest[digits:]
        if not rest.startswith("."):
            break
        rest = rest[1:]
    if not head:
        return None
    tail = rest.lstrip("-~_.+ ").lower()
    return Version(tuple(head), tail if tail.startswith(_PRE) else "", text.strip())


def whole_number(text: str) -> int | None:
    """``12`` -> 12. None for what ``isdigit`` takes and ``int`` chokes on: superscripts, thousands of digits."""
    return int(text) if text.isdigit() and text.isascii() and len(text) < 12 else None


def dotted(head: tuple[int, ...] | list[int]) -> str:
    return ".".join(str(part) for part in head)
