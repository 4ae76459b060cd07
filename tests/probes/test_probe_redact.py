"""Redaction takes every identifier out of a record and changes nothing that is concluded from it."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identifiers import IDENTIFIERS, UUIDS, with_identifiers
from probe_hosts import HOSTS, b200_host, finding, judged
from record_parts import gpu_row, uuid

from deepinfer.probes.redact import excerpt, masked, redact

RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in HOSTS]


def named_rows(uuids):
    rows = [gpu_row(i, "NVIDIA B200", "10.0", "183359 MiB", "580.126.09", "N/A") for i in range(len(uuids))]
    return [row.replace(uuid(i + 1), uuids[i]) for i, row in enumerate(rows)]


@pytest.mark.parametrize("record", RECORDS, ids=[path.stem for path in HOSTS])
@settings(max_examples=6, deadline=None)
@given(identifiers=IDENTIFIERS)
def test_no_identifier_survives_and_the_document_stays_the_same(record, identifiers):
    named = with_identifiers(record, identifiers)
    before = copy.deepcopy(named)
    plain = redact(named, [identifiers.machine, identifiers.user])
    assert named == before  # the record that was given is left alone
    text = json.dumps(plain).lower()
    assert [word for word in identifiers.all if word.lower() in text] == []
    document = json.dumps(judged(plain).document())
    assert document == json.dumps(judged(named).document())
    assert json.loads(document)["verdict"] == record["verdict_expected"]["verdict"]
    assert not [word for word in identifiers.all if word.lower() in document.lower()]


@pytest.mark.parametrize("record", RECORDS, ids=[path.stem for path in HOSTS])
@settings(max_examples=4, deadline=None)
@given(identifiers=IDENTIFIERS)
def test_redacting_twice_is_redacting_once(record, identifiers):
    once = redact(with_identifiers(record, identifiers), [identifiers.machine])
    assert redact(once) == once


@settings(max_examples=60, deadline=None)
@given(uuids=st.lists(UUIDS, min_size=2, max_size=5, unique=True))
def test_equal_identifiers_stay_equal_and_different_ones_different(uuids):
    record = {
        "machine": "x",
        "files": {"/a": " ".join(uuids), "/b": " ".join(text.upper() for text in reversed(uuids))},
    }
    plain = redact(record)["files"]
    assert plain["/a"].split() == plain["/b"].split()[::-1]
    assert len(set(plain["/a"].split())) == len(uuids)


@settings(max_examples=80, deadline=None)
@given(
    uuids=st.lists(UUIDS, min_size=1, max_size=5, unique=True),
    which=st.integers(0, 4),
    size=st.integers(1, 36),
    data=st.data(),
)
def test_a_uuid_or_its_beginning_selects_the_same_device_after_redaction(uuids, which, size, data):
    stranger = data.draw(UUIDS)
    wanted = [*uuids, stranger][which % (len(uuids) + 1)][:size].rstrip("-")
    value = data.draw(st.sampled_from(["GPU-%s", "0,GPU-%s", "GPU-%s,-1"])) % wanted
    record = b200_host(count=len(uuids), rows=named_rows(uuids), env={"CUDA_VISIBLE_DEVICES": value})
    left = [item.device.visible for item in judged(record).devices]
    plain = redact(record)
    assert [item.device.visible for item in judged(plain).devices] == left
    assert judged(plain).document() == judged(record).document()
    assert redact(plain) == plain


def test_a_mig_uuid_selects_the_same_slice_after_redaction():
    record = next(json.loads(path.read_text(encoding="utf-8")) for path in HOSTS if path.stem == "h100_mig")
    real = "377e0049-554c-540b-93c6-d0976f8426cb"
    named = json.loads(json.dumps(record).replace("00000000-0000-0000-0000-0000000000a1", real))
    assert judged(redact(named)).devices[0].device.visible
    assert real not in json.dumps(redact(named))


@pytest.mark.parametrize(
    "text",
    [
        "580.126.09",
        "GCC 10.3.0",
        "10.2.89",
        "13.0.88",
        "9.2.0",
        "V10.2.89",
        "1.10.3.0",
        "26.0.rc2",
        "0000:1b:00.0",
        "10.0",
    ],
)
def test_versions_and_bus_addresses_are_no_identifiers(text):
    assert redact({"machine": "x", "files": {"/a": text}})["files"]["/a"] == text
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/alice/cuda", "/home/user1/cuda"),
        ("/Users/Alice B/x", "/Users/user1 B/x"),
        ("https://bob:secret@pypi.org/simple", "https://pypi.org/simple"),
        ("bob@gpu-7.example.org:/x", "user@host:/x"),
        ("Serial Number : 1234567", "Serial Number : REDACTED"),
        ("    Chassis Serial Number         : 1", "    Chassis Serial Number         : REDACTED"),
        ("GPU Fabric GUID : 0x1", "GPU Fabric GUID : REDACTED"),
        ("Serial Number : N/A", "Serial Number : N/A"),
        ("fe80::1ff:fe23:4567:890a", "2001:db8::1"),
        ("//203.0.113.9:80/x", "//192.0.2.1:80/x"),
    ],
)
def test_each_kind_of_identifier_has_its_stand_in(text, left):
    assert redact({"machine": "x", "files": {"/a": text}})["files"]["/a"] == left
    assert redact({"machine": "x", "files": {"/a": left}})["files"]["/a"] == left


@pytest.mark.parametrize("user", ["ubuntu", "nvidia", "python", "admin", "cuda"])
def test_a_plain_user_name_does_not_change_what_the_host_is(user):
    record = b200_host(compiler="12.2.0", env={"HOME": "/home/" + user, "USER": user})
    plain = redact(record, [user])
    assert judged(plain).document() == judged(record).document()
    assert finding(judged(plain), "compiler.host").fix == "sudo apt-get install g++-13"


@pytest.mark.parametrize(
    "home", ["/usr", "/usr/lib", "/dev", "/", "", "relative", "/data/alice", "/root", "/nonexistent"]
)
def test_no_home_folder_changes_the_verdict(home):
    record = b200_host(env={"HOME": home})
    plain = redact(record)
    assert judged(plain).document() == judged(record).document()
    assert "alice" not in json.dumps(plain)


@settings(max_examples=200, deadline=None)
@given(before=st.text(max_size=80), identifier=UUIDS, size=st.integers(1, 120))
def test_a_cut_never_leaves_half_an_identifier(before, identifier, size):
    shown = excerpt("%s GPU-%s more" % (before, identifier), size)
    assert len(shown) <= size and "GPU-" + identifier[:4] not in shown


@settings(max_examples=150, deadline=None)
@given(text=st.text(), home=st.sampled_from(["", "/", "/home/a", "/x", "relative"]))
def test_masking_any_text_ends_and_prints_on_one_line(text, home):
    assert not [letter for letter in masked(text, home) if ord(letter) < 32]
