"""Reads the compiled ``index.json``: one promise, that what comes back is the matrix of this very tree.

On the path of every probe, so it imports next to nothing and keeps to Python 3.8. Other files of this package are for
the tools.
"""

from __future__ import annotations

import json
import os

from deepinfer.errors import DeepInferError

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
HERE = os.path.dirname(os.path.realpath(__file__))
_RENDER = "python -m deepinfer.matrix render"
_REINSTALL = "pip install --force-reinstall --no-deps deepinfer, or %s in a checkout" % _RENDER


class IndexUnreadable(DeepInferError):
    """The compiled matrix is missing, cannot be read, or is not what the renderer writes."""

    code = "DI101"


class IndexSchema(DeepInferError):
    """The compiled matrix has a schema number that this version does not read."""

    code = "DI102"


class IndexStale(DeepInferError):
    """The compiled matrix was rendered from other files than those beside it."""

    code = "DI103"


def load_index(path: str | None = None, check: bool = True) -> dict[str, Any]:
    """The matrix from ``path`` (default: beside this file); in a checkout, only if it is up to date (``check``)."""
    path = os.path.join(HERE, "index.json") if path is None else os.fspath(path)
    try:
        with open(path, "rb") as stream:
            index: dict[str, Any] = json.loads(stream.read().decode("utf-8"))
    except OSError as error:
        raise IndexUnreadable("cannot read %s: %s" % (path, error.strerror or error), fix=_REINSTALL) from None
    except (ValueError, RecursionError) as error:
        raise IndexUnreadable("%s is not JSON: %s" % (path, error), fix=_REINSTALL) from None
    _check_form(index, path)
    if check:
        _check_fresh(index, os.path.dirname(os.path.dirname(os.path.realpath(path))), path)
    return index


def allows(spec: dict[str, Any], version: tuple[int, ...]) -> bool:
    """Whether the release numbers ``version`` meet every bound of ``spec``; missing numbers count as zero."""
    for operator, bound in spec["bounds"]:
        # A prefix bound ignores what comes after it; every other one compares at full length.
        width = len(bound) if operator == "==*" else max(len(bound), len(version))
        have = tuple(version[:width]) + (0,) * (width - len(version))
        want = tuple(bound) + (0,) * (width - len(bound))
        met = {
            ">=": have >= want,
            ">": have > want,
            "<": have < want,
            "<=": have <= want,
            "==": have == want,
            "==*": have == want,
        }[operator]
        if not met:
            return False
    return True


def _check_form(index: Any, path: str) -> None:
    if not isinstance(index, dict) or not isinstance(index.get("schema"), int):
        raise IndexUnreadable("%s is not a compiled matrix: it has no schema number" % path, fix=_REINSTALL)
    schema = index["schema"]
    if schema != SCHEMA:
        age = "newer" if schema > SCHEMA else "older"
        raise IndexSchema(
            "%s has schema %d, %s than the %d that this version reads" % (path, schema, age, SCHEMA), fix=_REINSTALL
        )
    parts = {"sources": dict, "baseline": dict, "model": dict, "entries": list, "rfcs": dict, "variables": dict}
    for name, kind in parts.items():
        if not isinstance(index.get(name), kind):
            raise IndexUnreadable("%s is not a compiled matrix: %r is missing or odd" % (path, name), fix=_REINSTALL)


def _check_fresh(index: dict[str, Any], root: str, path: str) -> None:
    # A wheel ships no TOML, so there is nothing to be older than.
    if not (os.path.isdir(os.path.join(root, "matrix", "entries")) and os.path.isdir(os.path.join(root, "rfcs"))):
        return
    for name in source_names(root):
        try:
            with open(os.path.join(root, *name.split("/")), "rb") as stream:
                found = _sha256(stream.read())
        except OSError as error:
            raise IndexStale("cannot read %s: %s" % (name, error.strerror), fix=_RENDER) from None
        listed = index["sources"].get(name)
        if listed != found:
            what = "was added" if listed is None else "changed"
            raise IndexStale("%s is out of date: %s %s after it was rendered" % (path, name, what), fix=_RENDER)
    for name in sorted(index["sources"]):
        if not os.path.isfile(os.path.join(root, *name.split("/"))):
            raise IndexStale("%s is out of date: %s is gone" % (path, name), fix=_RENDER)


def source_names(root: str) -> list[str]:
    """Every file that the matrix is compiled from, as sorted ``/`` paths below ``root``."""
    names = []
    for folder in ("matrix", "matrix/entries", "rfcs"):
        for name in os.listdir(os.path.join(root, *folder.split("/"))):
            rfc = name.endswith(".md") and name[:4].isdigit() and name[4:5] == "-"
            if not name.startswith(".") and (rfc if folder == "rfcs" else name.endswith(".toml")):
                names.append("%s/%s" % (folder, name))
    return sorted(names)


def _sha256(data: bytes) -> str:
    # hashlib loads OpenSSL, which costs more than the rest of the probe; the small C module does the same.
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())
