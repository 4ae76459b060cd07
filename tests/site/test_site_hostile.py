"""What is no probe result gets its own message; what is hostile stays text; what has moved on is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from browser import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.matrix.load import ROOT

Document = Callable[..., dict[str, Any]]
RECORD = (ROOT / "tests/hosts/no_gpu.json").read_text(encoding="utf-8")
INDEX = (ROOT / "matrix/index.json").read_text(encoding="utf-8")
ATTACK = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("", "There is nothing to read.", "python3 -m deepinfer.probe --json"),
        ("  \n ", "There is nothing to read.", "--json"),
        ("hello", "This is not JSON.", "--json"),
        ("{'schema': 1}", "This is not JSON.", "--json"),
        ('{\n "schema": 1,\n "verd', "its end is missing", "Copy all"),
        ("\x7fELF\x00\x01", "looks like a binary file", "> probe.json"),
        ("Draft RFC only: 1 x NVIDIA H200 (nvidia-sm90), RFC 47.\n", "the probe's report for people", "--json"),
        ("DI204: the record is broken\n  fix: x", "an error message of DeepInfer", "--json"),
        ("[]", "a list, not a probe result", "--json"),
        ("[" * 100_000, "This is not JSON.", "--json"),
        ("[" * 100_000 + "]" * 100_000, "a list, not a probe result", "--json"),
        ('"eligible"', "a single value", "--json"),
        ("42", "a single value", "--json"),
        ("null", "a single value", "--json"),
        ("{}", "holds no verdict", "--json"),
        (RECORD, "This is a recorded host", "python3 -m deepinfer.probe --replay FILE --json"),
        ('{"schema": 1, "artifact_id": "x", "entry": "host-cpu"}', "a built artifact", "--json"),
        ('{"schema": 1, "gate": "probe", "source_digest": "x"}', "evidence of one gate", "--json"),
        (INDEX, "the compiled support matrix", "--json"),
        ('{"schema": 2, "verdict": "eligible"}', "written by a newer probe: schema 2", "newer version"),
        ('{"schema": 0, "verdict": "eligible"}', "No probe writes schema 0", "--json"),
        ('{"schema": "1", "verdict": "eligible"}', "no schema number", "--json"),
        ('{"verdict": "eligible"}', "no schema number", "--json"),
        ('{"schema": 1, "verdict": "maybe"}', "No verdict is called “maybe”", "change nothing"),
        ('{"schema": 1, "verdict": "eligible"}', "“entry” is missing or odd", "change nothing"),
        ("x" * (4 * 1024 * 1024 + 1), "larger than any probe result", "> probe.json"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_wrong_thing_has_its_own_message(page: Page, text: str, what: str, fix: str) -> None:
    said = page.read(text)
    assert what in said and fix in said
    assert page.look_of_answer() == "not-read" and page.details() == ""


def test_every_key_that_is_gone_or_odd_is_named(page: Page, document: Document) -> None:
    whole = document("b200_driver570_cuda13")
    for key in ("entry", "rfc", "blocking", "capacity", "aspects", "notes", "devices", "checks"):
        for broken in ({k: v for k, v in whole.items() if k != key}, {**whole, key: {"x": 1}}, {**whole, key: 7.5}):
            assert "“%s” is missing or odd" % key in page.read(broken), key
    for place, keys in (("devices", list(whole["devices"][0])), ("checks", list(whole["checks"][0]))):
        for key in set(keys) - {"exposed", "visible", "aspects"}:
            broken = json.loads(json.dumps(whole))
            broken[place][0][key] = {"a": 1}
            assert "“%s” is missing or odd" % place in page.read(broken), (place, key)


def poison(value: Any) -> Any:
    """The same document with an attack in every text that is free."""
    if isinstance(value, dict):
        fixed = ("verdict", "outcome", "entry", "capacity")
        return {key: item if key in fixed else poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return value + ATTACK if isinstance(value, str) else value


@pytest.mark.parametrize("host", ["b200_driver570_cuda13", "h100_mig", "b300x8_r610", "no_gpu", "h200_measured"])
def test_markup_in_any_text_stays_text(page: Page, document: Document, host: str) -> None:
    page.read({**poison(document(host)), "schema": 1, "verdict": document(host)["verdict"]})
    assert ATTACK in page.answer() + page.details()
    assert page.run("return window.hit") is None
    assert (
        page.run(
            "return document.querySelectorAll('main img, main script, main iframe, #details a[href^=java]').length"
        )
        == 0
    )
    assert page.complaints() == []


def test_names_of_every_object_find_nothing(page: Page, document: Document) -> None:
    for name in ("constructor", "__proto__", "toString", "hasOwnProperty"):
        odd = document("b300x8_r610")
        odd["entry"] = odd["devices"][0]["entry"] = name
        said = page.read(odd)
        assert "the matrix of this page has no entry %s" % name in said


def test_signs_that_turn_a_line_around_are_shown(page: Page, document: Document) -> None:
    odd = document("b300x8_r610")
    odd["devices"][0]["name"] = "good\u202egpj.elbigile\u0007"
    page.read(odd)
    assert "\u202e" not in page.answer() and "\\u202e" in page.answer() and "\\u0007" in page.answer()


def test_a_huge_document_is_cut_and_says_so(page: Page, document: Document) -> None:
    huge = document("b200_driver570_cuda13")
    huge["devices"] = huge["devices"] * 1000
    huge["checks"][0]["found"] = "x" * 100_000
    huge["notes"] = ["n"] * 5000
    page.read(huge)
    assert "and 7744 more" in page.details() and "(cut here)" in page.details()
    assert page.run("return document.querySelectorAll('#details li').length") < 1000


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    new = json.loads(json.dumps(document))
    new.update(values)
    for device in new["devices"]:
        device.update({key: value for key, value in values.items() if key in ("entry", "verdict")})
    return dict(new)


def test_a_status_that_moved_since_is_said(page: Page, document: Document) -> None:
    draft, refused, ready = document("h20_3e_x4"), document("b300x8_r610"), document("b200x8_baremetal")
    cases = [
        (changed(draft, entry="nvidia-sm103"), "nvidia-sm103 was judged “draft”; its status is now unsupported"),
        (changed(draft, entry="nvidia-sm100"), "nvidia-sm100 was judged “draft”; its status is now supported"),
        (changed(draft, entry="nvidia-sm907"), "the matrix of this page has no entry nvidia-sm907"),
        (changed(draft, rfc=46), "nvidia-sm90 belonged to RFC 46; now to RFC 47"),
        (changed(refused, entry="nvidia-sm90"), "nvidia-sm90 was judged “unsupported”; its status is now draft"),
        (changed(ready, entry="nvidia-sm90"), "nvidia-sm90 was judged “eligible”; its status is now draft"),
        (changed(refused, entry=None), "was not listed then; now nvidia-sm103 lists it"),
    ]
    for moved, said in cases:
        answer = page.read(moved)
        assert "Status changed since, run the probe again: " in answer and said in answer


def test_another_target_by_name_is_no_change(page: Page, document: Document) -> None:
    both = document("both_vendors")
    for device in both["devices"]:
        device["entry"] = device["entry"] if device["entry"] == both["entry"] else "nvidia-sm100"
        device["verdict"] = both["verdict"] if device["entry"] == both["entry"] else "unsupported"
    assert "Status changed" not in page.read(both)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats() | st.text(max_size=20) | st.just(ATTACK),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_anywhere_is_answered(page: Page, document: Document, data: st.DataObject) -> None:
    whole = document("h100_mig")
    place = data.draw(st.sampled_from([whole, whole["devices"][0], whole["checks"][0], whole["aspects"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(VALUES)
    said = page.read(whole)
    assert said and "our fault" not in said
    assert page.run("return window.hit") is None
