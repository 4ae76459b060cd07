"""The build record: what an artifact was made of. JSON beside the native module, written once by the build.

The artifact id is the SHA-256 of the inputs in canonical form (sorted keys, no blanks). It holds no path, time or name
of a machine, so two builds of the same inputs have the same id.
"""

from __future__ import annotations

from deepinfer.errors import DeepInferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
FILE = "_build_record.json"
# key -> type; every key is an input of the id but the id itself and what was seen afterwards
INPUTS = {
    "schema": int,
    "entry": str,
    "status": str,
    "kind": str,
    "matrix_digest": str,
    "source_digest": str,
    "architectures": list,
    "machine": str,
    "compiler": str,
    "cuda_host": str,
    "toolkit": str,
    "flags": dict,
    "versions": dict,
}
OTHERS = {"artifact_id": str, "verified_on_device": bool}


class RecordBroken(DeepInferError):
    """The build record is missing, no JSON, of a newer form, or its id does not belong to its inputs."""

    code = "DI311"


def canonical(value: Any) -> str:
    """``value`` as JSON with sorted keys and no blanks."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def artifact_id(record: dict[str, Any]) -> str:
    """``sha256:...`` of the record's inputs."""
    import hashlib

    return "sha256:" + hashlib.sha256(canonical({key: record[key] for key in INPUTS}).encode("ascii")).hexdigest()


def parse(text: str, place: str) -> dict[str, Any]:
    """The record in ``text``. Raises :class:`RecordBroken`; ``place`` names the file."""
    import json

    fix = "reinstall: pip install --no-cache-dir --force-reinstall deepinfer (or . in a checkout)"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordBroken("%s is no JSON: %s" % (place, error), fix=fix) from None
    if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
        raise RecordBroken("%s is no build record" % place, fix=fix)
    if record["schema"] > SCHEMA:
        raise RecordBroken("%s has schema %d; this version reads up to %d" % (place, record["schema"], SCHEMA), fix=fix)
    for key, kind in {**INPUTS, **OTHERS}.items():
        if not isinstance(record.get(key), kind):
            raise RecordBroken("%s: key %r is missing or no %s" % (place, key, kind.__name__), fix=fix)
    if record["artifact_id"] != artifact_id(record):
        raise RecordBroken("%s was changed: its id does not belong to its inputs" % place, fix=fix)
    return record
