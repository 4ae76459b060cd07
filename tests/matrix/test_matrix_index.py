"""The reader: what it refuses, how cheap it is, and that the index holds what the contract with its readers says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from deepinfer.matrix.index import IndexSchema, IndexStale, IndexUnreadable, load_index
from deepinfer.matrix.load import ROOT

ENTRY_KEYS = {
    "id", "title", "vendor", "status", "reason", "rfc", "accelerator", "match", "architectures", "partitioned",
    "require", "removal", "configurations", "provenance", "engine",
}  # fmt: skip


@pytest.fixture
def path(root):
    return root / "matrix" / "index.json"


def test_the_committed_index_is_fresh():
    assert load_index()["schema"] == 1


def test_a_missing_index_says_how_to_get_one(path):
    path.unlink()
    with pytest.raises(IndexUnreadable, match=r"deepinfer\.matrix render"):
        load_index(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"schema": "1"}', '{"schema": 1}', '{"schema": 1, "sources": []}', "[" * 100000]
)
def test_a_malformed_index_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(IndexUnreadable):
        load_index(path)


def test_bytes_that_are_not_utf8_are_refused(path):
    path.write_bytes(b'{"schema": "\xff"}')
    with pytest.raises(IndexUnreadable):
        load_index(path)


@pytest.mark.parametrize(("schema", "word"), [(2, "newer"), (0, "older")])
def test_another_schema_is_refused(path, schema, word):
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    with pytest.raises(IndexSchema, match=word):
        load_index(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("matrix/entries/nvidia-sm100.toml", "changed"),
        ("matrix/entries/new.toml", "was added"),
        ("rfcs/0099-new.md", "was added"),
        ("rfcs/0047-sm90.md", "changed"),
    ],
)
def test_a_changed_or_added_file_makes_it_stale(root, path, name, words):
    with open(root / name, "a") as stream:
        stream.write("# more\n")
    with pytest.raises(IndexStale, match=words) as caught:
        load_index(path)
    assert name in str(caught.value)
    assert caught.value.fix == "python -m deepinfer.matrix render"
    assert load_index(path, check=False)["schema"] == 1


def test_a_removed_file_makes_it_stale(root, path):
    (root / "matrix/entries/ascend-310p.toml").unlink()
    with pytest.raises(IndexStale, match=r"ascend-310p.toml is gone"):
        load_index(path)


def test_an_installed_index_has_nothing_to_be_older_than(root, path, tmp_path_factory):
    package = tmp_path_factory.mktemp("site") / "matrix"
    package.mkdir()
    (package / "index.json").write_bytes(path.read_bytes())
    assert load_index(package / "index.json")["entries"]


def test_reading_loads_no_expensive_module():
    heavy = ["hashlib", "typing", "dataclasses", "argparse", "tomllib", "packaging", "pathlib", "subprocess"]
    code = "import sys\nfrom deepinfer.matrix import index\nindex.load_index()\nprint(set(%r) & set(sys.modules))"
    command = [sys.executable, "-S", "-c", code % heavy]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_reading_parses_as_python_3_8():
    import ast

    for name in ("matrix/__init__.py", "matrix/index.py", "deepinfer/errors.py"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as stream:
            ast.parse(stream.read(), feature_version=(3, 8))


def test_every_entry_has_the_promised_keys():
    index = load_index()
    for entry in index["entries"]:
        assert set(entry) == ENTRY_KEYS
        assert set(entry["match"]) == {"compute_capabilities", "pci", "soc"}
        assert set(entry["require"]) == {"compilers", "python", "toolkit", "driver", "proposed"}
        assert re.fullmatch(r"none|core only|compiles|runs \(\d+ ops?\)", entry["engine"])
        for configuration in entry["configurations"]:
            assert set(configuration) == {
                "id", "role", "devices", "count", "memory_bytes", "domain", "says", "source"
            }  # fmt: skip


def test_what_upstream_supports_is_what_can_be_built():
    entries = {entry["id"]: entry for entry in load_index()["entries"]}
    supported = {name for name, entry in entries.items() if entry["status"] == "supported"}
    assert supported == {"nvidia-sm100", "ascend-950"}
    assert entries["nvidia-sm100"]["match"]["compute_capabilities"] == ["10.0"]
    assert entries["nvidia-sm100"]["require"]["toolkit"]["spec"]["text"] == ">=13,<14"
    assert entries["ascend-950"]["require"]["toolkit"]["spec"]["text"] == "==9.2.*"
    drafts = {name: entry["rfc"] for name, entry in entries.items() if entry["status"] == "draft"}
    assert drafts == {"ascend-910c": 46, "nvidia-sm90": 47}
    assert all(entries[name]["accelerator"] is None and entries[name]["require"]["toolkit"] is None for name in drafts)
    assert {entry["accelerator"] for entry in entries.values()} - {None} == {"nvidia", "ascend", "cpu"}
    assert not any(entries["host-cpu"]["match"].values())


def test_bytes_are_exact():
    index = load_index()
    (h20,) = next(e for e in index["entries"] if e["id"] == "nvidia-sm90")["configurations"]
    assert h20["memory_bytes"] == 143771 << 20
    assert h20["count"] * h20["memory_bytes"] == 603019280384
    assert sum(part["bytes"] for part in index["model"]["parts"]) == index["model"]["payload_bytes"] == 510286023000
