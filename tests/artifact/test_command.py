"""``python -m deepinfer.artifact``: wrong words and a missing artifact are errors of our form."""

from __future__ import annotations

import json

import pytest

from deepinfer import artifact
from deepinfer.errors import DeepInferError
from deepinfer.probes.artifact import installed


@pytest.mark.parametrize("words", [["shwo"], [], ["show", "--jsn"], ["verify", "extra"]])
def test_wrong_words_end_with_2_and_name_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert artifact.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("DI001: ")
    assert "fix: python -m deepinfer.artifact --help" in err


def test_without_an_artifact_the_command_to_get_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert artifact.main(["show"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("DI310: ")
    assert "DEEPINFER_ACCELERATOR=cpu pip install ." in err


def test_the_artifact_of_this_environment_is_shown_and_verified(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = installed.find()
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")
    assert artifact.main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.record
    code = artifact.main(["verify", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {item["id"] for item in document["checks"]} == {"record", "files", "device code", "matrix", "host"}
    assert code == int(not document["ok"])
