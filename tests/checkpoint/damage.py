"""Ways to damage a copy of a checkpoint: edit its JSON, its headers, its bytes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def copy(source: Path, target: Path) -> Path:
    """A copy whose files are links: only what is damaged costs space. Write with the functions of this module."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def write(path: Path, content: bytes) -> None:
    """Replace a file; the one it was linked to stays as it is."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_bytes())
    change(values)
    write(path, json.dumps(values).encode())


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a shard."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(path: Path, header: dict[str, Any], payload: bytes) -> None:
    text = json.dumps(header).encode()
    write(path, len(text).to_bytes(8, "little") + text + payload)


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_bytes())["weight_map"][name]


def edit_header(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the entry of tensor ``name`` in place."""
    path = shard_of(folder, name)
    header, payload = split(path)
    change(header[name])
    join(path, header, payload)
    return path


def rebuild(folder: Path, change: Callable[[dict[str, tuple[str, list[int], bytes]]], Any]) -> None:
    """Change the tensors (name: dtype, shape, bytes) of all shards and write one shard and an index that agree."""
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        header, payload = split(path)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], payload[begin:end])
        path.unlink()
    change(tensors)
    header, parts, at = {}, [], 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        parts.append(content)
        at += len(content)
    join(folder / "model.safetensors", header, b"".join(parts))
    index = {"metadata": {"total_size": at}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    write(folder / INDEX, json.dumps(index).encode())


def poke(folder: Path, name: str, at: int, value: bytes) -> None:
    """Overwrite bytes of one tensor's payload."""
    path = shard_of(folder, name)
    header, payload = split(path)
    begin = header[name]["data_offsets"][0] + at
    join(path, header, payload[:begin] + value + payload[begin + len(value) :])
