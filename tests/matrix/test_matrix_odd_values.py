"""No value, however odd, at any place of any file makes the loader or a rule crash; it makes a finding."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.matrix.compiled import index_text
from deepinfer.matrix.load import load
from deepinfer.matrix.rules import check
from deepinfer.matrix.validate import validate

ODD: list[Any] = [7, -1, "", "x", "*", True, [], [1], ["x"], {}, {"a": 1}, [{}], [{"a": "b"}], 1.5]
FILES = [
    "matrix/entries/nvidia-sm100.toml",
    "matrix/entries/nvidia-sm90.toml",
    "matrix/entries/host-cpu.toml",
    "matrix/model.toml",
    "matrix/variables.toml",
    "matrix/guidance.toml",
    "rfcs/0047-sm90.md",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("name", FILES)
def test_an_odd_value_is_never_a_crash(name):
    tree = load()
    number, document = next((n, d) for n, d in enumerate(tree.documents) if d.path == name)
    for path in places(document.data):
        for odd in ODD:
            data = copy.deepcopy(document.data)
            place = data
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = odd
            clean, findings = validate(document._replace(data=data))
            documents = list(tree.documents)
            documents[number] = document._replace(data=clean)
            broken = tree._replace(documents=documents, findings=findings)
            if not check(broken):
                assert index_text(broken), "%s = %r passed the rules" % (path, odd)
