"""No key of an entry, an RFC or an evidence file can be deleted, renamed or changed in silence.

Before rendering, any change is a finding: digests bind every byte. After rendering, a key's change breaks a rule, or it
is in what the key means: index.json, `matrix show --json` and `rfc status --json`.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
from copies import TODAY, copy_tree
from made_evidence import document, put
from toml_text import toml_text

from deepinfer.matrix.compiled import compiled_entries, index_of
from deepinfer.matrix.evidence import read_all
from deepinfer.matrix.imports import toml
from deepinfer.matrix.index import source_names
from deepinfer.matrix.load import ROOT, Tree, load
from deepinfer.matrix.rfc import front_matter
from deepinfer.matrix.rfc_case import RfcCase
from deepinfer.matrix.rfc_check import RULES, Report, check
from deepinfer.matrix.rfc_status import status_of
from deepinfer.matrix.rules import check as check_matrix
from deepinfer.matrix.show import entry_data

Path = tuple[Any, ...]


@pytest.fixture(scope="module")
def tree_root(tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("meaning"))


def keys(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every key of a document, tables and those inside of them."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if not isinstance(value, list):
            yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from keys(item, (*path, key))


def mutants(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in keys(data):
        for kind in ("delete", "rename", "change"):
            mutant = copy.deepcopy(data)
            table: Any = mutant
            for part in path[:-1]:
                table = table[part]
            if kind == "change":
                table[path[-1]] = changed(table[path[-1]])
            else:
                value = table.pop(path[-1])
                if kind == "rename":
                    table[path[-1] + "x"] = value
            yield "%s %s" % (kind, ".".join(map(str, path))), mutant


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dt.date):
        return value - dt.timedelta(days=1)
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        return {} if value else {"x": "x"}
    return value[:-1] if value else ["x"]


def findings(tree: Tree) -> tuple[list[Any], RfcCase]:
    found = check_matrix(tree)
    compiled = [] if found else compiled_entries(tree)
    evidence = read_all(tree.root, [str(entry.data.get("id")) for entry in tree.of("entry")])
    case = RfcCase(tree, evidence, TODAY, compiled)
    for item in evidence:
        found = [*found, *item.findings]
    for _, rule in RULES.values():
        if rule is not None:
            found = [*found, *rule(case)]
    return found, case


def meaning(tree: Tree, case: RfcCase) -> str:
    """All that the tools say of it."""
    index = index_of(tree)
    index.pop("sources")
    shown = [entry_data(tree, entry["id"]) for entry in index["entries"]]
    report = Report([], [], [], case)
    rfcs = [status_of(report, int(number)) for number in index["rfcs"]]
    return json.dumps([index, shown, rfcs], sort_keys=True, default=str)


NAMES = [name for name in source_names(str(ROOT)) if name.startswith(("matrix/entries/", "rfcs/"))]


@pytest.mark.parametrize("name", NAMES)
def test_no_change_of_a_key_is_silent(name: str, tree_root) -> None:
    path = tree_root / name
    text = path.read_text(encoding="utf-8")
    is_rfc = name.startswith("rfcs/")
    data = toml().loads(front_matter(text) if is_rfc else text)
    tail = text[text.index("\n+++") + 1 :] if is_rfc else ""

    def judge(version: dict[str, Any]) -> tuple[list[Any], str]:
        path.write_text(("+++\n" if is_rfc else "") + toml_text(version) + tail, encoding="utf-8")
        tree = load(tree_root)
        found, case = findings(tree)
        return found, "" if found else meaning(tree, case)

    try:
        found, before = judge(data)
        assert not found, "written back, it means the same: %s" % found
        silent = []
        count = 0
        for what, mutant in mutants(data):
            found, after = judge(mutant)
            count += 1
            if not found and after == before:
                silent.append(what)
        assert silent == []
        assert count >= 15
    finally:
        path.write_text(text, encoding="utf-8")


def test_every_change_is_a_finding_until_it_is_rendered(tree_root) -> None:
    path = tree_root / "matrix/entries/nvidia-sm90.toml"
    text = path.read_text(encoding="utf-8")
    try:
        for old, new in (("# No toolkit", "# no toolkit"), ('"NVIDIA H200"', '"NVIDIA H200 "'), ("names no", "has no")):
            path.write_text(text.replace(old, new, 1), encoding="utf-8")
            assert check(tree_root, TODAY).findings, old
    finally:
        path.write_text(text, encoding="utf-8")


def test_no_key_of_evidence_can_change(tree_root) -> None:
    data = document(tree_root)
    path = put(tree_root, data)
    entries = [entry.data["id"] for entry in load(tree_root).of("entry")]
    try:
        assert [item.counts for item in read_all(tree_root, entries)] == [True]
        for what, mutant in mutants(data):
            put(tree_root, mutant, "nvidia-sm90/" + path.name)
            assert [len(item.findings) for item in read_all(tree_root, entries)] == [1], what
    finally:
        path.unlink()
