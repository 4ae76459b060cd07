"""The build record: its id belongs to its inputs, and every damage has an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from records import record

from deepinfer.probes.artifact.record import INPUTS, OTHERS, RecordBroken, artifact_id, parse


def test_a_whole_record_is_read_back() -> None:
    made = record()
    assert parse(json.dumps(made), "here") == made


@pytest.mark.parametrize("key", INPUTS)
def test_every_input_changes_the_id(key: str) -> None:
    made = record()
    value: Any = made[key]
    changed = value + 1 if isinstance(value, int) else value + "x" if isinstance(value, str) else [*value, "x"]
    other = {**made, key: {**value, "x": "y"} if isinstance(value, dict) else changed}
    assert artifact_id(other) != made["artifact_id"]


def test_the_id_depends_on_nothing_else() -> None:
    assert artifact_id({**record(), "verified_on_device": True}) == record()["artifact_id"]


@pytest.mark.parametrize("key", [*INPUTS, *OTHERS])
def test_a_missing_or_mistyped_key_is_named(key: str) -> None:
    for value in (None, object):
        damaged = {name: item for name, item in record().items() if name != key or value is None}
        if value is None:
            damaged[key] = None
        with pytest.raises(RecordBroken, match="DI311|" + key):
            parse(json.dumps(damaged), "here")


DAMAGE = {
    "no json": ("{", "is no JSON"),
    "a list": ("[]", "is no build record"),
    "newer": (json.dumps(record(schema=2)), "schema 2"),
    "changed": (json.dumps({**record(), "entry": "host-cpu"}), "was changed"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_apart(case: str) -> None:
    text, words = DAMAGE[case]
    with pytest.raises(RecordBroken) as caught:
        parse(text, "here")
    assert words in str(caught.value)
    assert "fix: " in str(caught.value)
