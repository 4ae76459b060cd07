"""Random single changes: refused, or seen in what was read. Nothing is swallowed, nothing else is raised."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from damage import INDEX, copy, shard_of, write

pytest.importorskip("torch", reason="not run: torch is not installed")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import coverage, json_file, shards
from deepinfer.engine.checkpoint.errors import Problem, Refused, ShardDamaged
from deepinfer.engine.checkpoint.fields import Section
from deepinfer.engine.checkpoint.inventory import tensors
from deepinfer.engine.checkpoint.tiny import tiny_values

RIGHT = configuration.parse(tiny_values())
NEEDED = list(tensors(RIGHT))
PATHS = [(key,) for key in tiny_values()] + [
    (section, key)
    for section in ("text_config", "vision_config", "quantization_config")
    for key in tiny_values()[section]
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FEW = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(st.sampled_from(PATHS), JSON | st.integers(-2, 600) | st.lists(st.integers(-1, 12), max_size=13))
def test_a_changed_value_is_refused_or_read(path: tuple[str, ...], value: Any) -> None:
    values = tiny_values()
    place = values
    for key in path[:-1]:
        place = place[key]
    old, place[path[-1]] = place[path[-1]], value
    config, problems = configuration.examine(values)
    if problems or value == old or path[-1] in configuration.NO_MEANING:
        return
    owner: Any = config if len(path) == 1 else {"text_config": config.text, "vision_config": config.vision}[path[0]]
    found = getattr(owner, path[-1])
    if isinstance(value, dict):
        found = dataclasses.asdict(found) | {"rope_type": "yarn"}
    off = path[-1] == "candidate_source_layer_id" and isinstance(value, int) and value < 0
    assert (found is None) if off else (list(found) if isinstance(found, tuple) else found) == value
    assert config != RIGHT


@FEW
@given(st.sampled_from(PATHS), st.text(min_size=1, max_size=12))
def test_a_renamed_key_is_refused(path: tuple[str, ...], name: str) -> None:
    values = tiny_values()
    place = values
    for key in path[:-1]:
        place = place[key]
    if name in place or name in configuration.NO_MEANING:
        return
    place[name] = place.pop(path[-1])
    _, problems = configuration.examine(values)
    assert any(name in problem.subject for problem in problems)


@FEW
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_malformed(content: bytes) -> None:
    with contextlib.suppress(json_file.Malformed):
        assert isinstance(json_file.parse(content), dict)


@FEW
@given(JSON)
def test_any_section_is_read_to_the_end(value: Any) -> None:
    problems: list[Problem] = []
    section = Section("s", value, problems)
    assert isinstance(section.integer("a"), int)
    assert isinstance(section.number("b"), float)
    assert isinstance(section.integers("c"), tuple)
    assert problems


def outcome(folder: Path) -> list[Problem]:
    try:
        files, problems = shards.examine(folder)
    except Refused as error:
        return list(error.problems)
    return [*problems, *coverage.problems(RIGHT, NEEDED, files)]


@FEW
@given(seed=st.integers(0, 2**32), value=JSON)
def test_one_change_of_the_index_is_never_silent(tiny: Path, tmp_path: Path, seed: int, value: Any) -> None:
    draw = random.Random(seed)
    folder = tmp_path / "copy"
    if not folder.exists():
        copy(tiny, folder)
    index = json.loads((tiny / INDEX).read_bytes())
    name = draw.choice(sorted(index["weight_map"]))
    file = index["weight_map"][name]
    change = draw.randrange(4)
    if change == 0:
        del index["weight_map"][name]
    elif change == 1:
        index["weight_map"][name + draw.choice("xyz.")] = index["weight_map"].pop(name)
    elif change == 2:
        index["weight_map"][name] = draw.choice([other for other in set(index["weight_map"].values()) if other != file])
    else:
        index["weight_map"][name] = value
    write(folder / INDEX, json.dumps(index).encode())
    assert outcome(folder)


@FEW
@given(seed=st.integers(0, 2**32))
def test_one_changed_byte_of_a_header_is_refused_or_changes_nothing(tiny: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    folder = tmp_path / "copy"
    if not folder.exists():
        copy(tiny, folder)
    path = shard_of(folder, "norm.weight")
    original = (tiny / path.name).read_bytes()
    length = int.from_bytes(original[:8], "little")
    at = draw.randrange(8 + length)
    changed = bytearray(original)
    changed[at] ^= 1 << draw.randrange(8)
    write(path, bytes(changed))
    if not outcome(folder):
        files = shards.open_files(folder)
        assert files.stored == shards.examine(tiny)[0].stored
        files.tensor("norm.weight")  # what our reader lets pass, the library does too


@FEW
@given(seed=st.integers(0, 2**32))
def test_a_shard_of_any_other_length_is_refused(tiny: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    source = shard_of(tiny, "norm.weight")
    path = tmp_path / source.name
    size = source.stat().st_size
    path.write_bytes(source.read_bytes())
    cut = draw.choice([draw.randrange(size), size + 1 + draw.randrange(100)])
    os.truncate(path, cut)
    with pytest.raises(ShardDamaged, match=r"DI504: model-"):
        shards.read_header(path)


@FEW
@given(st.binary(max_size=120), st.integers(0, 130))
def test_any_bytes_are_a_shard_or_damaged(tmp_path: Path, content: bytes, length: int) -> None:
    path = tmp_path / "any.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + content)
    try:
        assert isinstance(shards.read_header(path), list)
    except ShardDamaged as error:
        assert error.problems[0].file == path.name
