"""Everything that can be checked of a checkpoint without running it: config, tokenizer, index, headers, values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import coverage, json_file, shards, tokenizer
from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.errors import ConfigRefused, Problem, Refused, ValueRefused
from deepinfer.engine.checkpoint.fields import FILE
from deepinfer.engine.checkpoint.inventory import tensors
from deepinfer.engine.checkpoint.shards import COPY, Files, Stored
from deepinfer.engine.progress import Progress

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 24  # elements looked at in one go: bounds the memory of the search


@dataclass(frozen=True)
class Report:
    """What was found. ``config`` is None if it was refused; ``values`` says whether payloads were searched."""

    folder: Path
    config: Config | None
    tensors: int
    payload_bytes: int
    files: int
    values: bool
    problems: tuple[Problem, ...]


def verify(folder: Path, *, values: bool = True, progress: Progress | None = None) -> Report:
    """Check ``folder``. Payloads are searched for NaN and infinity only if ``values`` and nothing else is wrong."""
    problems: list[Problem] = []
    config = _config(folder, problems)
    files = _files(folder, problems)
    if config is not None:
        try:
            problems += tokenizer.problems(tokenizer.read(folder), config)
        except Refused as error:
            problems += error.problems
        if files is not None:
            problems += coverage.problems(config, tensors(config), files)
    searched = values and not problems and files is not None
    if searched and files is not None:
        problems += _search(files, progress)
    count = len(files.stored) if files else 0
    payload = files.payload() if files else 0
    shard_count = len(set(files.index.values())) if files else 0
    return Report(folder, config, count, payload, shard_count, searched, tuple(problems))


def _config(folder: Path, problems: list[Problem]) -> Config | None:
    try:
        values = json_file.read(folder, FILE, configuration.LIMIT, ConfigRefused)
    except Refused as error:
        problems += error.problems
        return None
    config, found = configuration.examine(values)
    problems += found
    return None if found else config


def _files(folder: Path, problems: list[Problem]) -> Files | None:
    try:
        files, found = shards.examine(folder)
    except Refused as error:
        problems += error.problems
        return None
    problems += found
    return files


def _search(files: Files, progress: Progress | None) -> Iterator[Problem]:
    """The first value of each tensor that is no number."""
    total, done = files.payload(), 0
    for name, stored in files.stored.items():
        try:
            place = _first_bad(files.tensor(name), stored)
        except Refused as error:  # the file went away or shrank since its header was read
            yield from error.problems
            return
        if place is not None:
            what = "%s at %s" % ("NaN" if stored.dtype.startswith("F8") else "NaN or infinity", place)
            yield Problem(ValueRefused, stored.file, stored.key, what, COPY % stored.file)
        done += stored.end - stored.begin
        if progress is not None:
            progress(done, total, name)


def _first_bad(tensor: torch.Tensor, stored: Stored) -> list[int] | None:
    """Index of the first NaN or infinity, or None. E8M0 255 and E4M3 0x7F, 0xFF are NaN; I8 is only a container."""
    import torch

    if stored.dtype == "I8":
        return None
    coded = stored.dtype.startswith("F8")
    flat = (tensor.view(torch.uint8) if coded else tensor).flatten()
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        if stored.dtype == "F8_E8M0":
            bad = part == 255
        elif coded:
            bad = (part & 127) == 127
        else:
            bad = ~torch.isfinite(part)
        if bool(bad.any()):
            at = start + int(bad.nonzero()[0])
            return [int(axis) for axis in torch.unravel_index(torch.tensor(at), tensor.shape)]
    return None
