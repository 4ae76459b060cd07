"""Damaged files: each kind of damage is refused with its code, the file and the tensor, from the headers alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import INDEX, copy, edit_header, edit_json, join, poke, rebuild, shard_of, split, write

pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint import shards
from deepinfer.engine.checkpoint.verify import verify

NAME = "layers.3.attn.wq_a.weight"
SCALE = "layers.3.attn.wq_a.scale"
Header = dict[str, Any]


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return copy(tiny, tmp_path / "copy")


def found(folder: Path, *, values: bool = False) -> list[str]:
    return [f"{problem.code} {problem.text()}" for problem in verify(folder, values=values).problems]


def expect(folder: Path, code: str, *words: str, values: bool = False) -> None:
    texts = found(folder, values=values)
    assert any(text.startswith(code) and all(word in text for word in words) for text in texts), texts[:5]


def test_an_undamaged_copy_is_right(folder: Path) -> None:
    report = verify(folder)
    assert report.problems == () and report.values
    assert (report.tensors, report.payload_bytes, report.files) == (962, 4623026, 3)


def test_a_missing_shard(folder: Path) -> None:
    shard_of(folder, NAME).unlink()
    expect(folder, "DI504", "model-00001", "cannot be read")


def test_a_truncated_shard(folder: Path) -> None:
    path = shard_of(folder, NAME)
    write(path, path.read_bytes()[:-1])
    expect(folder, "DI504", path.name, "the file was cut")
    write(path, path.read_bytes()[:5])
    expect(folder, "DI504", path.name, "too short")
    write(path, b"")
    expect(folder, "DI504", path.name, "too short")


def test_bytes_after_the_last_tensor(folder: Path) -> None:
    path = shard_of(folder, NAME)
    write(path, path.read_bytes() + b"\0" * 3)
    expect(folder, "DI504", path.name, "3 bytes after")


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 100_000_001])
def test_a_header_that_claims_too_much_is_not_read(folder: Path, length: int) -> None:
    path = shard_of(folder, NAME)
    write(path, length.to_bytes(8, "little") + path.read_bytes()[8:])
    if length == 100_000_001:
        os.truncate(path, 200_000_000)  # sparse: as long as it claims
    expect(folder, "DI504", path.name, str(length))


def test_a_header_that_is_no_json(folder: Path) -> None:
    path = shard_of(folder, NAME)
    content = path.read_bytes()
    write(path, content[:8] + b"[" + content[9:])
    expect(folder, "DI504", path.name, "header is damaged")


@pytest.mark.parametrize("metadata", [5, {"format": 1}, []])
def test_metadata_that_are_no_texts(folder: Path, metadata: Any) -> None:
    path = shard_of(folder, NAME)
    header, payload = split(path)
    header["__metadata__"] = metadata
    join(path, header, payload)
    expect(folder, "DI504", path.name, "__metadata__")


def test_what_cannot_be_mapped_is_a_problem_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shards, "mmap", refuse)
    expect(folder, "DI504", "cannot be mapped", "Cannot allocate memory", values=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: entry.update(dtype="F4"), "not known"),
        (lambda entry: entry.update(dtype=4), "not known"),
        (lambda entry: entry.update(dtype="BF16"), "bytes stored"),
        (lambda entry: entry.update(shape=[64, 129]), "bytes stored"),
        (lambda entry: entry.update(shape=[64, -128]), "no list of sizes"),
        (lambda entry: entry.update(shape=[64, True]), "no list of sizes"),
        (lambda entry: entry.update(shape=[2**62] * 3), "bytes stored"),
        (lambda entry: entry.update(data_offsets=[10, 5]), "no range"),
        (lambda entry: entry.update(data_offsets=[0]), "no range"),
        (lambda entry: entry.update(more=1), "an entry with"),
        (lambda entry: entry.pop("shape"), "an entry with"),
    ],
)
def test_an_entry_that_contradicts_itself(folder: Path, change: Callable[[Header], Any], words: str) -> None:
    path = edit_header(folder, NAME, change)
    expect(folder, "DI504", path.name, NAME, words)


@pytest.mark.parametrize(("by", "words"), [(-1, "overlaps"), (1, "leaves a gap")])
def test_byte_ranges_follow_each_other(folder: Path, by: int, words: str) -> None:
    def move(entry: Header) -> None:
        entry["data_offsets"] = [offset + by for offset in entry["data_offsets"]]

    path = edit_header(folder, NAME, move)
    expect(folder, "DI504", path.name, NAME, words)


def test_a_range_beyond_the_file(folder: Path) -> None:
    def far(entry: Header) -> None:
        entry["data_offsets"] = [2**40, 2**40 + 64 * 128]

    path = edit_header(folder, NAME, far)
    expect(folder, "DI504", path.name, NAME, "ends at byte")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index["weight_map"].update({NAME: "model-00009-of-00003.safetensors"}), "model-00009"),
        (lambda index: index["weight_map"].update({NAME: "../model.safetensors"}), "no plain name"),
        (lambda index: index["weight_map"].update({NAME: "weights.bin"}), "no plain name"),
        (lambda index: index["weight_map"].update({NAME: 7}), "no plain name"),
        (lambda index: index["weight_map"].update({"model." + NAME: index["weight_map"][NAME]}), "named twice"),
        (lambda index: index["weight_map"].pop(NAME), "does not name it"),
        (lambda index: index["weight_map"].update({NAME: "model-00003-of-00003.safetensors"}), "places it in"),
        (lambda index: index["weight_map"].update(ghost="model-00003-of-00003.safetensors"), "no such tensor"),
        (lambda index: index["metadata"].update(total_size=1), "total_size"),
        (lambda index: index["metadata"].update(total_size="4623026"), "total_size"),
        (lambda index: index.pop("metadata"), "total_size"),
        (lambda index: index.update(weight_map=[]), "weight_map"),
        (lambda index: index.update(weight_map={}), "weight_map"),
    ],
)
def test_an_index_that_is_wrong(folder: Path, change: Callable[[Header], Any], words: str) -> None:
    edit_json(folder / INDEX, change)
    texts = found(folder)
    assert any(text.startswith(("DI503", "DI504")) and words in text for text in texts), texts[:3]


def test_an_index_that_is_no_json_or_absent(folder: Path) -> None:
    write(folder / INDEX, b"{")
    expect(folder, "DI503", INDEX, "no JSON")
    (folder / INDEX).unlink()
    expect(folder, "DI501", INDEX, "cannot be read")


def test_a_tensor_in_two_shards(folder: Path) -> None:
    first, other = shard_of(folder, NAME), shard_of(folder, "vision.norm.weight")
    entry, payload = split(first)[0][NAME], split(first)[1]
    header, tail = split(other)
    begin, end = entry["data_offsets"]
    header[NAME] = {**entry, "data_offsets": [len(tail), len(tail) + end - begin]}
    join(other, header, tail + payload[begin:end])
    expect(folder, "DI504", other.name, NAME, "a second time")


def test_both_spellings_in_one_shard(folder: Path) -> None:
    path = shard_of(folder, NAME)
    header, payload = split(path)
    entry = header[NAME]
    begin, end = entry["data_offsets"]
    header["model." + NAME] = {**entry, "data_offsets": [len(payload), len(payload) + end - begin]}
    join(path, header, payload + payload[begin:end])
    expect(folder, "DI504", "model." + NAME, "a second time")


def test_the_leading_model_is_optional(folder: Path) -> None:
    def rename(tensors: Header) -> None:
        for name in list(tensors):
            tensors["model." + name] = tensors.pop(name)

    rebuild(folder, rename)
    assert found(folder) == []
    assert shards.open_files(folder).tensor(NAME).shape == shards.open_files(folder).tensor("model." + NAME).shape


def drop(*names: str) -> Callable[[Header], Any]:
    return lambda tensors: [tensors.pop(name) for name in names]


def move(old: str, new: str) -> Callable[[Header], Any]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def put(name: str, dtype: str, shape: list[int], size: int) -> Callable[[Header], Any]:
    return lambda tensors: tensors.update({name: (dtype, shape, b"\0" * size)})


EXPERT = "layers.3.ffn.experts.7.w2.weight"
SHARED = "layers.3.ffn.shared_experts.w3"
PATCH = "vision.patch_embed.proj.weight"


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (drop("norm.weight"), "norm.weight", "missing: BF16 [128] needed"),
        (drop(SCALE), SCALE, "nothing without the scale"),
        (drop(NAME), NAME, "only its scale"),
        (drop(EXPERT, EXPERT.replace("weight", "scale")), EXPERT, "expert 7 of layers.3 is incomplete"),
        (drop(SHARED + ".weight", SHARED + ".scale"), SHARED, "w1, w2 and w3"),
        (move(EXPERT, EXPERT.replace(".7.", ".8.")), "experts.8.", "experts 0 to 7"),
        (move(PATCH, "vision.patch_embed.weight"), PATCH, "a spelling that is not read"),
        (move("norm.weight", "final_norm.weight"), "final_norm.weight", "unknown"),
        (move("norm.weight", "norms.weight"), "norms.weight", "did you mean 'norm.weight'"),
        (put("layers.0.hc_attn_norm.weight", "BF16", [512], 1024), "hc_attn_norm", "folded"),
        (put("hc_head_norm.weight", "BF16", [512], 1024), "hc_head_norm", "folded"),
        (put("hc_head_fn", "F32", [4, 512], 8192), "hc_head_fn", "no mHC head"),
        (put("norm.weight", "F32", [128], 512), "norm.weight", "F32 found, BF16 needed"),
        (put("norm.weight", "BF16", [129], 258), "norm.weight", "shape [129] found, [128] needed"),
        (put(SCALE, "F8_E8M0", [1, 8], 8), SCALE, "shape [1, 8] found, [2, 4] needed"),
        (put(SCALE, "F32", [2, 4], 32), SCALE, "F8_E8M0 needed"),
        (put("layers.2.hc_ffn_base", "BF16", [24], 48), "hc_ffn_base", "never cast"),
        (put("layers.2.attn.attn_sink", "BF16", [4], 8), "attn_sink", "never cast"),
        (put("layers.2.ffn.gate.bias", "BF16", [8], 16), "gate.bias", "never cast"),
        (put("layers.1.engram.embed.weight", "F8_E4M3", [1617, 32], 1617 * 32), "engram.embed", "[1618, 32] needed"),
    ],
)
def test_what_is_stored_is_what_the_configuration_implies(
    folder: Path, change: Callable[[Header], Any], name: str, words: str
) -> None:
    rebuild(folder, change)
    expect(folder, "DI505", name, words)


def test_ties_of_draft_layers_are_not_read(folder: Path) -> None:
    rebuild(folder, put("mtp.1.embed.weight", "BF16", [512, 128], 131072))
    assert found(folder) == []
    rebuild(folder, put("mtp.1.embeds.weight", "BF16", [1], 2))
    expect(folder, "DI505", "mtp.1.embeds.weight")


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        (SCALE, 5, b"\xff", "NaN at [1, 1]"),
        (NAME, 130, b"\x7f", "NaN at [1, 2]"),
        (NAME, 0, b"\xff", "NaN at [0, 0]"),
        ("layers.1.engram.embed.scale", 1617, b"\xff", "NaN at [1617, 0]"),
        ("norm.weight", 4, b"\x80\x7f", "NaN or infinity at [2]"),
        ("layers.0.attn.attn_sink", 12, b"\x00\x00\xc0\x7f", "NaN or infinity at [3]"),
    ],
)
def test_a_value_that_is_no_number(folder: Path, name: str, at: int, value: bytes, words: str) -> None:
    poke(folder, name, at, value)
    assert found(folder) == []
    expect(folder, "DI506", name, words, values=True)


def test_headers_are_read_without_payloads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards.Files, "tensor", lambda *_: pytest.fail("a payload was read"))
    assert found(folder, values=False) == []


def test_many_problems_are_cut_in_the_message_and_whole_in_the_error(folder: Path) -> None:
    from deepinfer.engine.checkpoint.errors import TensorMismatch
    from deepinfer.engine.checkpoint.weights import open_weights

    rebuild(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".experts." in name])
    with pytest.raises(TensorMismatch) as caught:
        open_weights(folder, "reference")
    assert len(caught.value.problems) == (10 * 8 + 2 * 4) * 6
    assert str(caught.value).count("DI505") == 20
    assert "and 508 more" in str(caught.value)


def test_all_kinds_of_problems_are_found_in_one_run(folder: Path) -> None:
    edit_json(folder / "config.json", lambda values: values.update(dtype="float16"))
    shard_of(folder, NAME).unlink()
    assert {text[:5] for text in found(folder)} == {"DI502", "DI504"}
    write(folder / "config.json", b"{")
    assert {text[:5] for text in found(folder)} == {"DI502", "DI504"}
