"""Tensors mapped from their files: the same as the safetensors library reads, at any address, of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damage import copy, join, shard_of, write

torch: Any = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint import shards
from deepinfer.engine.checkpoint.errors import ShardDamaged

NAME = "layers.3.attn.wq_a.weight"


def test_a_file_that_changes_after_its_header_was_read(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "copy")
    files = shards.open_files(folder)
    path = shard_of(folder, NAME)
    write(path, path.read_bytes()[:3000])
    with pytest.raises(ShardDamaged, match="changed while it was in use"):
        files.tensor(NAME)
    write(path, b"")
    with pytest.raises(ShardDamaged, match="cannot be mapped"):
        shards.Files(folder, files.index, files.stored).tensor(NAME)


def test_the_library_reads_the_same(tiny: Path) -> None:
    safetensors = pytest.importorskip("safetensors", reason="not run: safetensors is not installed")
    files = shards.open_files(tiny)
    for path in sorted(tiny.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as theirs:
            for name in theirs.offset_keys():
                one, other = theirs.get_tensor(name), files.tensor(name)
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_every_known_dtype_at_any_address(tmp_path: Path) -> None:
    for number, (dtype, size) in enumerate(shards.SIZES.items()):
        path = tmp_path / f"{number}.safetensors"
        header = {"pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        header["x"] = {"dtype": dtype, "shape": [2, 1], "data_offsets": [1, 1 + 2 * size]}
        header["empty"] = {"dtype": dtype, "shape": [0, 3], "data_offsets": [1 + 2 * size] * 2}
        join(path, header, b"\0" + b"\1" * (2 * size))
        entries = {entry.key: entry for entry in shards.read_header(path)}
        files = shards.Files(tmp_path, dict.fromkeys(entries, path.name), entries)
        x = files.tensor("x")
        assert x.shape == (2, 1) and x.element_size() == size and x.data_ptr() % size == 0
        assert files.tensor("empty").shape == (0, 3)


def test_a_map_costs_no_memory_however_large_the_file(tmp_path: Path) -> None:
    size = 1 << 40  # sparse: more than any host commits
    path = tmp_path / "large.safetensors"
    join(path, {"x": {"dtype": "F8_E4M3", "shape": [size // 256, 256], "data_offsets": [0, size]}}, b"")
    try:
        with path.open("r+b") as stream:
            stream.truncate(path.stat().st_size + size)
    except OSError as error:
        pytest.skip(f"not run: no sparse file of 1 TB here: {error}")
    (entry,) = shards.read_header(path)
    files = shards.Files(tmp_path, {"x": path.name}, {"x": entry})
    rows = files.tensor("x").view(torch.uint8)[torch.tensor([0, size // 256 - 1])]
    assert rows.shape == (2, 256) and not rows.any()
