"""Version bounds: PEP 440 text from the TOML files, compiled into integer tuples for the readers.

Readers compare the release numbers of a tool's version, so only plain releases and ordering make sense here: a bound
such as ``~=13.0`` or ``>=13.0rc1`` is refused instead of being approximated.
"""

from __future__ import annotations

import re
from typing import Any

from deepinfer.errors import DeepInferError
from deepinfer.matrix.imports import specifiers

_CLAUSE = re.compile(r"(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?")


class SpecifierError(DeepInferError):
    """A version bound is not PEP 440, or uses more of it than the readers can compare."""

    code = "DI110"


def compile_spec(text: str) -> dict[str, Any]:
    """The ``{"text", "bounds"}`` of the index for ``text``; raises :class:`SpecifierError`."""
    _validate(text)
    bounds: list[list[Any]] = []
    for clause in text.split(","):
        match = _CLAUSE.fullmatch(clause.strip())
        if match is None:
            raise SpecifierError(
                "version bound %r has a clause that readers cannot compare: %r" % (text, clause.strip()),
                fix="use >=, >, <, <=, == or ==X.* with a plain release number, such as '>=13,<14'",
            )
        operator, release, star = match.groups()
        bounds.append([operator + ("*" if star else ""), [int(part) for part in release.split(".")]])
    return {"text": text, "bounds": bounds}


def _validate(text: str) -> None:
    packaging = specifiers()
    fix = "write PEP 440 bounds such as '>=13,<14' or '==9.2.*'"
    if not text.strip():
        raise SpecifierError("version bound is empty", fix=fix)
    try:
        packaging.SpecifierSet(text)
    except packaging.InvalidSpecifier as error:
        raise SpecifierError("version bound %r is not PEP 440: %s" % (text, error), fix=fix) from None
