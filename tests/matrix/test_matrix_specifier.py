"""Bounds mean what packaging says they mean, for every release version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from deepinfer.matrix.index import allows
from deepinfer.matrix.specifier import SpecifierError, compile_spec

release = st.lists(st.integers(0, 4), min_size=1, max_size=4)
clause = st.tuples(st.sampled_from([">=", ">", "<", "<=", "==", "==*"]), release)


def dotted(numbers):
    return ".".join(map(str, numbers))


@given(st.lists(clause, min_size=1, max_size=3), release)
def test_bounds_agree_with_packaging(clauses, version):
    text = ",".join(
        "==%s.*" % dotted(numbers) if operator == "==*" else operator + dotted(numbers) for operator, numbers in clauses
    )
    assert allows(compile_spec(text), tuple(version)) == SpecifierSet(text).contains(dotted(version))


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        (">=13,<14", [[">=", [13]], ["<", [14]]]),
        ("==9.2.*", [["==*", [9, 2]]]),
        ("==9.2", [["==", [9, 2]]]),
        (">= 580.65.06", [[">=", [580, 65, 6]]]),
    ],
)
def test_bounds_are_what_the_index_holds(text, bounds):
    assert compile_spec(text) == {"text": text, "bounds": bounds}


@pytest.mark.parametrize(
    "text",
    ["", " ", "13", ">=", "~=13.0", "!=13", "===13", ">=13rc1", ">=1!13", ">=13.post1", "==13+cu", ">=13;<14", "*"],
)
def test_what_cannot_be_compared_is_refused(text):
    with pytest.raises(SpecifierError) as caught:
        compile_spec(text)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "version", "met"),
    [
        (">=13,<14", (13, 4), True),
        (">=13,<14", (14,), False),
        (">=580.65.06", (580, 65, 5), False),
        (">=580.65.06", (580, 126, 9), True),
        ("==9.2.*", (9, 2, 0), True),
        ("==9.2.*", (9, 20), False),
        ("==3.12.*", (3, 12), True),
    ],
)
def test_known_versions(text, version, met):
    assert allows(compile_spec(text), version) is met
