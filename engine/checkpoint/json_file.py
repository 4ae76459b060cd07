"""JSON as a checkpoint's files must be: an object, each key once, no NaN, of bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from deepinfer.engine.checkpoint.errors import Problem, Refused


class Malformed(ValueError):
    """Text that is no JSON object, or an ambiguous one. Says why; the caller knows the file."""


def parse(text: bytes) -> dict[str, Any]:
    """The object in ``text`` (UTF-8). Raises :class:`Malformed`."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError as error:
        raise Malformed("nested too deeply") from error
    except Malformed:
        raise
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, an integer of more digits than Python reads
        raise Malformed("no JSON: %s" % error) from error
    if not isinstance(value, dict):
        raise Malformed("%s found, an object needed" % type(value).__name__)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Malformed("key %r occurs twice" % key)
        found[key] = value
    return found


def _no_constant(word: str) -> NoReturn:
    raise Malformed("%s is no number" % word)


def read(folder: Path, name: str, limit: int, kind: type[Refused]) -> dict[str, Any]:
    """The object in ``folder/name``, a file of at most ``limit`` bytes. Raises ``kind`` or :class:`Refused`."""
    path = folder / name
    fix = "copy %s again from where the checkpoint came from" % name
    try:
        size = path.stat().st_size
        if size > limit:
            raise kind((Problem(kind, name, "", "%d bytes found, at most %d read" % (size, limit), fix),))
        return parse(path.read_bytes())
    except Malformed as error:
        raise kind((Problem(kind, name, "", str(error), fix),)) from error
    except OSError as error:
        what = "%s cannot be read: %s" % (path, error.strerror or error)
        fix = "name a folder that holds config.json, tokenizer.json, model.safetensors.index.json and the shards"
        raise Refused((Problem(Refused, name, "", what, fix),)) from error
