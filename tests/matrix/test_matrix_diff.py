"""``matrix diff``: every change since a revision in words, none silently; wrong revisions have a code and a fix."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.matrix.__main__ import main
from deepinfer.matrix.difference import changes
from deepinfer.matrix.load import ROOT
from deepinfer.matrix.render import render

INDEX: dict[str, Any] = json.loads((ROOT / "matrix/index.json").read_text(encoding="utf-8"))


def git(root: Path, *words: str) -> str:
    named = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *words]
    return subprocess.run(named, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(root: Path) -> Path:
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def diff(root: Path, capsys: Any, *words: str) -> tuple[int, str, str]:
    code = main(["--root", str(root), "diff", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_nothing_changed(repository, capsys):
    code, out, err = diff(repository, capsys, "HEAD")
    assert (code, err) == (0, "")
    assert out == "nothing changed in the matrix since %s\n" % git(repository, "rev-parse", "HEAD")[:12]


def test_changes_are_told_in_words(repository, edit, capsys):
    edit("matrix/entries/nvidia-sm103.toml", "(B300, GB300)", "(B300)")
    edit("matrix/entries/nvidia-sm100.toml", ">=580.65.06", ">=581.1")
    edit(
        "matrix/entries/nvidia-sm120.toml", 'compute_capabilities = ["12.0"]', 'compute_capabilities = ["12.0", "9.9"]'
    )
    edit("rfcs/0047-sm90.md", 'id = "kernels-in-the-model"', 'id = "kernels-in-the-whole-model"')
    code, out, _ = diff(repository, capsys, "HEAD")
    assert code == 0
    for line in (
        "nvidia-sm103\n  title: NVIDIA SM103 (B300, GB300) -> NVIDIA SM103 (B300)\n",
        "  require.driver: >=580.65.06 -> >=581.1\n",
        "nvidia-sm120\n  match.compute_capabilities: +9.9\n",
        "RFC 47\n  blocker closed: kernels-in-the-model: ",
        "  blocker opened: kernels-in-the-whole-model: ",
    ):
        assert line in out


def test_json_holds_both_sides(repository, edit, capsys):
    edit("matrix/entries/nvidia-sm103.toml", "(B300, GB300)", "(B300)")
    code, out, _ = diff(repository, capsys, "HEAD", "--json")
    data = json.loads(out)
    assert code == 0 and data["since"] == git(repository, "rev-parse", "HEAD")
    assert data["changes"] == [
        {
            "subject": "nvidia-sm103",
            "field": "title",
            "before": "NVIDIA SM103 (B300, GB300)",
            "after": "NVIDIA SM103 (B300)",
            "says": "title: NVIDIA SM103 (B300, GB300) -> NVIDIA SM103 (B300)",
        }
    ]


def test_the_tree_counts_and_not_what_was_rendered(repository, edit, capsys):
    edit("matrix/entries/nvidia-sm103.toml", "(B300, GB300)", "(B300)")
    before = diff(repository, capsys, "HEAD")
    render(repository)
    assert diff(repository, capsys, "HEAD") == before


@pytest.mark.parametrize(
    "revision", ["nope", "HEAD~99", "", "a b", "--", "HEAD:README.md", "0" * 40, "\0", "$(touch x)"]
)
def test_a_wrong_revision(repository, capsys, revision):
    code, out, err = diff(repository, capsys, "--", revision)
    assert (code, out) == (2, "")
    assert err.startswith("DI") and "  fix: " in err
    assert not (repository / "x").exists()


def test_a_revision_without_a_matrix_or_with_another_one(repository, capsys):
    path = repository / "matrix/index.json"
    good = path.read_text(encoding="utf-8")
    index = json.loads(good)
    for text in ("{", "[]", "{}", json.dumps({**index, "schema": 9}), json.dumps({**index, "entries": {}})):
        path.write_text(text, encoding="utf-8")
        git(repository, "commit", "-qam", "odd")
        code, _, err = diff(repository, capsys, "HEAD")
        assert code == 2 and err.startswith("DI118: ") and "git log --oneline -- matrix/index.json" in err
    git(repository, "rm", "-q", "--cached", "matrix/index.json")
    git(repository, "commit", "-qm", "none")
    code, _, err = diff(repository, capsys, "HEAD")
    assert code == 2 and "DI118: HEAD has no matrix/index.json" in err


def test_no_repository_and_no_git(root, capsys, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent))
    code, _, err = diff(root, capsys, "HEAD")
    assert code == 2 and err.startswith("DI116: ") and "not in a git repository" in err
    monkeypatch.setenv("PATH", "")
    code, _, err = diff(root, capsys, "HEAD")
    assert code == 2 and err.startswith("DI116: git is not installed")


def test_a_word_is_missing_or_wrong(capsys):
    for words, said in ((["diff"], "required: revision"), (["diff", "HEAD", "--jsn"], "did you mean '--json'?")):
        assert main(words) == 2
        assert said in capsys.readouterr().err


def changed(edit: Any) -> list[str]:
    new = copy.deepcopy(INDEX)
    edit(new)
    return ["%s: %s" % (change.subject, change.says) for change in changes(INDEX, new)]


def entry(index: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in index["entries"] if one["id"] == name)
    return found


def test_each_kind_of_change_has_its_words():
    assert changed(lambda new: new["entries"].remove(entry(new, "nvidia-sm103"))) == [
        "nvidia-sm103: removed: NVIDIA SM103 (B300, GB300), unsupported"
    ]
    assert changed(lambda new: entry(new, "nvidia-sm90").update(status="accepted", engine="runs (9 ops)")) == [
        "nvidia-sm90: status: draft -> accepted",
        "nvidia-sm90: engine: %s -> runs (9 ops)" % entry(INDEX, "nvidia-sm90")["engine"],
    ]
    assert changed(lambda new: entry(new, "nvidia-sm100")["require"].update(toolkit=None)) == [
        "nvidia-sm100: require.toolkit: cuda >=13,<14 -> none"
    ]
    assert changed(lambda new: entry(new, "nvidia-sm100").update(architectures=["103a"])) == [
        "nvidia-sm100: architectures: +103a, -100a"
    ]
    assert changed(lambda new: entry(new, "nvidia-sm100")["configurations"][0].update(count=8)) == [
        "nvidia-sm100: configuration.sm100-prefill-4.count: 4 -> 8"
    ]
    assert changed(lambda new: new["rfcs"]["47"].update(blockers=[]))[0].startswith(
        "RFC 47: blocker closed: capacity: "
    )
    assert changed(lambda new: new["rfcs"].pop("46")) == ["RFC 46: removed: %s" % INDEX["rfcs"]["46"]["title"]]
    assert changed(lambda new: new["model"].update(payload_bytes=1)) == ["model: payload_bytes: 510286023000 -> 1"]
    assert changed(lambda new: new["model"]["parts"][0].update(bytes=7))[0].startswith("model: bytes of routed experts")
    assert changed(lambda new: new["gaps"].pop(0))[0].startswith("gaps: kv-cache: ")


def test_digests_alone_are_no_change():
    assert changed(lambda new: new["sources"].clear()) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for place, item in enumerate(value) for leaf in leaves(item, (*path, place))]
    return [path]


LEAVES = [path for path in leaves(INDEX) if path[0] not in ("sources", "generated", "schema")]


@given(st.sampled_from(LEAVES))
def test_no_changed_value_passes_silently(path):
    new = copy.deepcopy(INDEX)
    place = new
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "something else"
    assert changes(INDEX, new), path
