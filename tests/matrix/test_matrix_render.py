"""Rendering: idempotent, checked, all or nothing; and the hour of a contributor who writes a draft by hand."""

from __future__ import annotations

import json

import pytest

from deepinfer.matrix.index import load_index
from deepinfer.matrix.load import ROOT
from deepinfer.matrix.render import Findings, MarkersBroken, render

ENTRY = """\
schema = 1
id = "nvidia-sm107"
title = "NVIDIA SM107 (Rubin)"
vendor = "nvidia"
status = "draft"
rfc = 48
partitioned = false
provenance = "rfc"

[match]
compute_capabilities = ["10.7"]

[[source]]
id = "rfc"
kind = "upstream-rfc"
says = "Proposes it."
read = 2026-11-30
covers = ["match.compute_capabilities"]
"""
RFC = """\
+++
number = 48
title = "NVIDIA SM107"
created = 2026-11-30
authors = ["A contributor"]
entries = ["nvidia-sm107"]

[[blocker]]
id = "toolchain"
kind = "toolkit"
text = "No toolkit was tried."
+++

# NVIDIA SM107
"""


def test_the_tree_is_rendered():
    assert render(ROOT, write=False) == []


def test_rendering_twice_changes_nothing(root, edit):
    edit("matrix/entries/nvidia-sm103.toml", "(B300, GB300)", "(GB300, B300)")
    changed = ["matrix/index.json", "README.md", "site/index.html"]
    assert render(root, write=False) == changed
    assert render(root) == changed
    assert render(root) == []
    assert "GB300, B300" in (root / "README.md").read_text()
    assert load_index(root / "matrix/index.json")


def test_check_writes_nothing(root, edit):
    edit("README.md", "| Host CPU |", "| Any CPU |")
    before = (root / "README.md").read_bytes()
    assert render(root, write=False) == ["README.md"]
    assert (root / "README.md").read_bytes() == before


def test_prose_around_the_blocks_stays(root):
    path = root / "README.md"
    path.write_text("before\n" + path.read_text().replace("## ", "## \\1 ") + "\nafter \\g<0>\n")
    render(root)
    assert path.read_text().startswith("before\n") and path.read_text().endswith("after \\g<0>\n")


@pytest.mark.parametrize("old", ["<!-- matrix:begin gaps -->", "<!-- matrix:end gaps -->"])
def test_a_lost_marker_is_named(root, edit, old):
    edit("README.md", old, "")
    index = (root / "matrix/index.json").read_bytes()
    with pytest.raises(MarkersBroken, match="'gaps'"):
        render(root)
    assert (root / "matrix/index.json").read_bytes() == index


def test_nothing_is_written_while_there_are_findings(root, edit):
    before = (root / "matrix/index.json").read_bytes()
    edit("matrix/entries/nvidia-sm103.toml", '"10.3"', '"10.0"')
    with pytest.raises(Findings) as caught:
        render(root)
    assert caught.value.exit_code == 1 and caught.value.findings
    assert (root / "matrix/index.json").read_bytes() == before


def test_a_draft_written_by_hand_shows_up_everywhere(root):
    (root / "matrix/entries/nvidia-sm107.toml").write_text(ENTRY)
    (root / "rfcs/0048-sm107.md").write_text(RFC)
    assert render(root) == ["matrix/index.json", "README.md", "rfcs/README.md", "site/index.html"]
    index = load_index(root / "matrix/index.json")
    entry = next(entry for entry in index["entries"] if entry["id"] == "nvidia-sm107")
    assert (entry["status"], entry["rfc"], entry["accelerator"]) == ("draft", 48, None)
    assert index["rfcs"]["48"] == {
        "title": "NVIDIA SM107",
        "file": "rfcs/0048-sm107.md",
        "entries": ["nvidia-sm107"],
        "upstream": None,
        "blockers": [{"id": "toolchain", "kind": "toolkit", "text": "No toolkit was tried."}],
    }
    assert "rfcs/0048-sm107.md" in (root / "README.md").read_text()


def test_the_index_is_plain_sorted_json(root):
    text = (root / "matrix/index.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
