"""Whether two ``match`` tables claim the same device. Prefixes count as every name that they begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def overlaps(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """``(key, value of other)`` for each claim of ``other`` that ``one`` makes too."""
    for key in ("compute_capabilities", "pci"):
        for value in other.get(key, ()):
            if value in one.get(key, ()):
                yield key, value
    for name in other.get("soc", ()):
        if any(same_names(name, mine) for mine in one.get("soc", ())):
            yield "soc", name


def same_names(one: str, other: str) -> bool:
    """Whether some SoC name is meant by both, each being a name or a prefix that ends in ``*``."""
    if one.endswith("*") and other.endswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if one.endswith("*"):
        return other.startswith(one[:-1])
    if other.endswith("*"):
        return one.startswith(other[:-1])
    return one == other
