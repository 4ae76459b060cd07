"""The front matter of an RFC: TOML between two ``+++`` lines at the top of ``rfcs/NNNN-slug.md``."""

from __future__ import annotations

import re

NAME = re.compile(r"([0-9]{4})-([a-z0-9]+(?:-[a-z0-9]+)*)\.md")
_FENCE = "+++"


class NoFrontMatter(ValueError):
    """The file does not begin with a block between two ``+++`` lines."""


def front_matter(text: str) -> str:
    """The TOML of an RFC, with its first line blank so that line numbers are those of the file."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        raise NoFrontMatter("the first line is not +++")
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == _FENCE:
            return "\n".join(["", *lines[1:number], ""])
    raise NoFrontMatter("the block that +++ opens is not closed by another +++")


def number_of(name: str) -> int | None:
    """The number in a file name such as ``0047-sm90.md``; None if it is not such a name."""
    match = NAME.fullmatch(name)
    return int(match.group(1)) if match else None
