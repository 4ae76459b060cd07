"""make-tiny: complete, deterministic, all or nothing; its tokenizer; what the tokenizer check refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damage import copy, edit_json, write

pytest.importorskip("torch", reason="not run: torch is not installed")
tokenizers: Any = pytest.importorskip("tokenizers", reason="not run: tokenizers is not installed")

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import tiny as maker
from deepinfer.engine.checkpoint import tokenizer
from deepinfer.engine.checkpoint.errors import Refused, TargetRefused, TokenizerMismatch
from deepinfer.engine.checkpoint.verify import verify
from deepinfer.engine.checkpoint.weights import open_weights
from deepinfer.errors import UsageError


def test_the_same_seed_is_the_same_bytes_and_another_is_not(tiny: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    maker.make(again, seed=1)
    maker.make(other, seed=2, index_heads=4)
    names = sorted(path.name for path in tiny.iterdir())
    assert sorted(path.name for path in again.iterdir()) == names
    assert all((again / name).read_bytes() == (tiny / name).read_bytes() for name in names)
    assert all((other / name).read_bytes() != (tiny / name).read_bytes() for name in names if name.startswith("model-"))
    assert configuration.read(other).text.index_n_heads == 4
    assert verify(other).problems == ()


def test_values_have_their_sizes(tiny: Path) -> None:
    weights = open_weights(tiny, "reference")

    def spread(name: str) -> float:
        return float(weights.load(name).float().std())

    assert spread("layers.0.attn.wq_a.weight") == pytest.approx(128**-0.5, rel=0.05)
    assert spread("layers.0.ffn.experts.1.w1.weight") > 4 * spread("layers.0.ffn.experts.0.w1.weight")
    assert spread("layers.0.attn_norm.weight") == pytest.approx(0.1, rel=0.3)
    assert float(weights.load("layers.0.hc_attn_scale").min()) >= 0.5
    assert spread("layers.0.hc_attn_fn") == pytest.approx(0.5 * 512**-0.5, rel=0.05)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(TargetRefused, match="not empty"):
        maker.make(tmp_path, seed=1)
    with pytest.raises(TargetRefused, match="not empty"):
        maker.make(tmp_path / "notes.txt", seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    maker.make(tmp_path / "empty", seed=3)
    assert verify(tmp_path / "empty", values=False).problems == ()


def test_what_is_cut_short_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(maker, "_write_shard", full)
    with pytest.raises(TargetRefused, match="No space left"):
        maker.make(tmp_path / "new", seed=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seed", "heads"), [(-1, 16), (2**63, 16), (1, 0), (1, 257)])
def test_numbers_out_of_range(tmp_path: Path, seed: int, heads: int) -> None:
    with pytest.raises(UsageError):
        maker.make(tmp_path / "new", seed, heads)


def test_the_compressed_map_merges_what_reads_the_same(tiny: Path) -> None:
    found = tokenizer.read(tiny)
    ids = tokenizer.compressed_map(found, 512)

    def compressed(word: str) -> int:
        return ids[found.token_to_id(word)]

    assert len(ids) == 512 and max(ids) + 1 == 431 == configuration.read(tiny).text.engram_compressed_vocab_size
    assert ids[0] == 0 and all(new <= max(ids[:at], default=-1) + 1 for at, new in enumerate(ids))
    assert compressed("a") == compressed("A") == compressed("Ġa") == compressed("ĠA")
    assert compressed("a") != compressed("b")
    assert compressed("Ġ") == compressed("Ċ") == compressed("ĉ")  # space, line feed, tab
    assert compressed("Ġ") != compressed("a")
    assert compressed("Ã") != compressed("ã")  # bytes 0xC3 and 0xE3: no characters, so no lower case


def test_text_survives_the_tokenizer(tiny: Path) -> None:
    found = tokenizer.read(tiny)
    for text in ("Hello world", "Grüße, 世界 🙂", "  two  spaces\n"):
        assert found.decode(found.encode(text).ids) == text
    assert len(found.encode("banana").ids) < 6


def mend(folder: Path, **changes: Any) -> None:
    edit_json(folder / "config.json", lambda values: values.update(changes))


def test_another_tokenizer_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "copy")
    edit_json(folder / "config.json", lambda values: values["text_config"].update(engram_compressed_vocab_size=430))
    (problem,) = verify(folder).problems
    assert problem.code == "DI507" and "431 ids, config.json says 430" in problem.what


def test_a_tokenizer_with_other_specials_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "copy")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    write(folder / "tokenizer.json", text.replace(tokenizer.EOS, "</s>").encode())
    assert verify(folder).problems == ()  # native: taken as it is
    mend(folder, tokenizer_compatibility="release")
    (problem,) = verify(folder).problems
    assert (problem.code, problem.subject) == ("DI507", tokenizer.EOS)
    swapped = text.replace(tokenizer.PAD, "<x>").replace(tokenizer.BOS, tokenizer.PAD)
    write(folder / "tokenizer.json", swapped.encode())
    assert any("pad token needs id 2" in problem.what for problem in verify(folder).problems)


def test_a_tokenizer_that_appends_eos_or_has_other_placeholders_is_refused(tiny: Path) -> None:
    values = json.loads((tiny / "config.json").read_bytes())
    values["tokenizer_compatibility"] = "release"
    config = configuration.parse(values)

    def texts(change: Any) -> list[str]:
        found = tokenizer.read(tiny)
        change(found)
        return [problem.text() for problem in tokenizer.problems(found, config)]

    assert texts(lambda _: None) == []
    assert texts(lambda found: found.add_special_tokens(list(tokenizer.PLACEHOLDERS))) == []
    assert "id 512" in texts(lambda found: found.add_special_tokens(["<other>"]))[0]
    assert "no such id" in texts(lambda found: found.add_special_tokens([*tokenizer.PLACEHOLDERS, "<more>"]))[0]
    template = tokenizers.processors.TemplateProcessing(
        single="$A " + tokenizer.EOS, special_tokens=[(tokenizer.EOS, 1)]
    )
    assert "appends it" in texts(lambda found: setattr(found, "post_processor", template))[0]
    native = configuration.read(tiny)
    more = tokenizer.read(tiny)
    more.add_tokens(["extra"])
    assert "513 tokens for a vocabulary of 512" in tokenizer.problems(more, native)[0].what


def test_a_file_that_is_no_tokenizer(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "copy")
    for content in (b"{}", b"[1"):
        write(folder / "tokenizer.json", content)
        with pytest.raises(TokenizerMismatch, match="DI507.*tokenizer.json"):
            tokenizer.read(folder)
    write(folder / "tokenizer.json", b"\xff\xfe")
    with pytest.raises(Refused, match="DI501"):
        tokenizer.read(folder)
    (folder / "tokenizer.json").unlink()
    assert verify(folder).problems[0].code == "DI501"


def test_a_gap_in_the_ids_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "copy")

    def gap(values: Any) -> None:
        vocabulary = values["model"]["vocab"]
        vocabulary["zz-unused"] = vocabulary.pop("iz", None) or 499
        vocabulary["zz-unused"] = 600

    edit_json(folder / "tokenizer.json", gap)
    codes = {problem.code for problem in verify(folder).problems}
    assert codes == {"DI507"}
