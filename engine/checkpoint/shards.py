"""The files of a checkpoint: the index, the safetensors headers, and tensors mapped into memory.

Headers are read and judged before a file is mapped, so that a damaged one is named with its tensor and costs no memory.
The safetensors library reads the same files (a test compares), but maps them writable: Linux refuses that for the 99 GB
of an Engram table on a host with less memory.

Form of a file: 8 bytes little-endian header length n, n bytes of JSON, payload; an entry has ``dtype``, ``shape`` and
``data_offsets`` [begin, end) from the start of the payload. Nothing here unpickles.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deepinfer.engine.checkpoint import json_file
from deepinfer.engine.checkpoint.errors import (
    IndexDamaged,
    NoSuchTensor,
    PackageMissing,
    Problem,
    ShardDamaged,
    raise_for,
)
from deepinfer.engine.checkpoint.inventory import ITEM_BYTES
from deepinfer.errors import nearest

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
INDEX_LIMIT = 256 << 20  # bytes; the release's has about 10 million
HEADER_LIMIT = 100_000_000  # bytes, the format's own limit
OTHER_BYTES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "F16": 2, "I16": 2, "U16": 2, "F8_E5M2": 1, "U8": 1}
SIZES = {**ITEM_BYTES, **OTHER_BYTES, "BOOL": 1}
_IN_TORCH = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
_FAMILIES = {"F": "float", "I": "int", "U": "uint"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")
COPY = "copy %s again from where the checkpoint came from"


class Stored(NamedTuple):
    """One tensor of a file; ``key`` is its name there, ``begin`` and ``end`` count from the start of the payload."""

    file: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Files:
    """What is stored, by name without the optional leading ``model.``; ``index`` maps each name to its file."""

    folder: Path
    index: dict[str, str]
    stored: dict[str, Stored]
    maps: dict[str, mmap] = field(default_factory=dict, repr=False, compare=False)

    def payload(self) -> int:
        """Bytes of all tensors."""
        return sum(one.end - one.begin for one in self.stored.values())

    def find(self, name: str) -> Stored:
        """The tensor of this name. Raises :class:`NoSuchTensor`."""
        found = self.stored.get(plain(name))
        if found is None:
            hint = nearest(name, list(self.stored)) if len(self.stored) < 5000 else ""
            fix = "python -m deepinfer.checkpoint inspect %s" % self.folder
            raise NoSuchTensor("%s has no tensor %r%s" % (self.folder, name, hint), fix=fix)
        return found

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored, mapped from its file and not copied. Read it only: writing to it ends the process."""
        import torch

        found = self.find(name)
        mapped = self._mapped(found)
        dtype, count = getattr(torch, _torch_name(found.dtype)), found.end - found.begin
        if not count:
            return torch.empty(found.shape, dtype=dtype)
        start = 8 + int.from_bytes(mapped[:8], "little") + found.begin
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only is meant
            flat = torch.frombuffer(mapped, dtype=torch.uint8, count=count, offset=start)
        if flat.data_ptr() % dtype.itemsize:  # the format does not promise alignment
            flat = flat.clone()
        return flat.view(dtype).view(found.shape)

    def _mapped(self, found: Stored) -> mmap:
        """The whole file, read-only: such a map needs no memory of its own, however large the file."""
        file = found.file
        if file not in self.maps:
            try:
                with (self.folder / file).open("rb") as stream:
                    self.maps[file] = mmap(stream.fileno(), 0, access=ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: an empty file
                problem = Problem(ShardDamaged, file, found.key, "cannot be mapped: %s" % error, COPY % file)
                raise ShardDamaged((problem,)) from error
        mapped = self.maps[file]
        if 8 + int.from_bytes(mapped[:8], "little") + found.end > len(mapped):
            problem = Problem(ShardDamaged, file, found.key, "the file was changed while it was in use", COPY % file)
            raise ShardDamaged((problem,))
        return mapped


def _torch_name(dtype: str) -> str:
    """``F32`` is float32, ``I8`` int8, and so on."""
    if dtype == "BOOL":
        return "bool"
    return _IN_TORCH.get(dtype) or _FAMILIES[dtype[0]] + dtype[1:]


def missing(package: str) -> PackageMissing:
    """The error for a package of the extra ``engine`` that cannot be imported."""
    return PackageMissing(
        "%s is not installed" % package, fix='pip install "deepinfer[engine]", or pip install %s' % package
    )


def plain(name: str) -> str:
    """The name without the optional leading ``model.``."""
    return name.removeprefix("model.")


def examine(folder: Path) -> tuple[Files, list[Problem]]:
    """Index and headers of ``folder``, and all that is wrong with them. Raises only where there is no index to read."""
    index, total, problems = _index(folder)
    stored: dict[str, Stored] = {}
    for file in sorted(set(index.values())):
        try:
            entries = read_header(folder / file)
        except ShardDamaged as error:
            problems += error.problems
            continue
        for entry in entries:
            problems += _placed(entry, index, stored)
            stored.setdefault(plain(entry.key), entry)
    files = Files(folder, index, stored)
    if not problems:
        problems += [_absent(name, file) for name, file in index.items() if name not in stored]
        if not problems and total != files.payload():
            what = "metadata.total_size is %s, the tensors have %d bytes" % (total, files.payload())
            problems.append(Problem(IndexDamaged, INDEX, "metadata.total_size", what, COPY % INDEX))
    return files, problems


def open_files(folder: Path) -> Files:
    """The files of ``folder``. Raises the first kind of error with all problems."""
    files, problems = examine(folder)
    raise_for(problems)
    return files


def _absent(name: str, file: str) -> Problem:
    return Problem(IndexDamaged, file, name, "the index places it here, and the file has no such tensor", COPY % file)


def _placed(entry: Stored, index: dict[str, str], stored: dict[str, Stored]) -> list[Problem]:
    """The tensor is where the index says, and nowhere else."""
    name, found = plain(entry.key), []
    if name in stored:
        what = "stored a second time; %s has it as %s" % (stored[name].file, stored[name].key)
        found.append(Problem(ShardDamaged, entry.file, entry.key, what, COPY % entry.file))
    elif name not in index:
        what = "stored, and %s does not name it" % INDEX
        found.append(Problem(IndexDamaged, entry.file, entry.key, what, COPY % INDEX))
    elif index[name] != entry.file:
        what = "stored here, and %s places it in %s" % (INDEX, index[name])
        found.append(Problem(IndexDamaged, entry.file, entry.key, what, COPY % INDEX))
    return found


def _index(folder: Path) -> tuple[dict[str, str], Any, list[Problem]]:
    """(name to file, total_size, problems). Names without ``model.``."""
    values = json_file.read(folder, INDEX, INDEX_LIMIT, IndexDamaged)
    names, metadata = values.get("weight_map"), values.get("metadata")
    problems: list[Problem] = []

    def report(subject: str, what: str) -> None:
        problems.append(Problem(IndexDamaged, INDEX, subject, what, COPY % INDEX))

    if not isinstance(names, dict) or not names:
        report("weight_map", "an object of tensor names and files needed")
        names = {}
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(total, int) or isinstance(total, bool):
        report("metadata.total_size", "%r found, the number of payload bytes needed" % (total,))
    index: dict[str, str] = {}
    for name, file in names.items():
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            report(name, "%r is no plain name of a .safetensors file" % (file,))
        elif plain(name) in index:
            report(name, "named twice, with and without the leading model.")
        else:
            index[plain(name)] = file
    return index, total, problems


def read_header(path: Path) -> list[Stored]:
    """The tensors of a file, in the order of their bytes; no payload is read. Raises :class:`ShardDamaged`."""
    file = path.name

    def refuse(what: str) -> ShardDamaged:
        return ShardDamaged((Problem(ShardDamaged, file, "", what, COPY % file),))

    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8:
                raise refuse("%d bytes: too short for a header; the copy was cut" % size)
            if length > min(HEADER_LIMIT, size - 8):
                limits = (length, min(HEADER_LIMIT, size - 8))
                raise refuse("its header claims %d bytes, at most %d can be; the copy was cut or changed" % limits)
            text = stream.read(length)
    except OSError as error:
        raise refuse("the index names this file, and it cannot be read: %s" % (error.strerror or error)) from error
    try:
        values = json_file.parse(text)
    except json_file.Malformed as error:
        raise refuse("its header is damaged: %s" % error) from error
    metadata = values.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise refuse("its header is damaged: __metadata__ is no object of texts")
    problems: list[Problem] = []
    entries = []
    for name, value in values.items():
        try:
            entries.append(_entry(file, name, value))
        except json_file.Malformed as error:
            problems.append(Problem(ShardDamaged, file, name, str(error), COPY % file))
    raise_for(problems)
    entries.sort(key=lambda one: (one.begin, one.end))
    raise_for(_ranges(file, entries, size - 8 - length))
    return entries


def _entry(file: str, name: str, value: Any) -> Stored:
    """One checked entry of a header. Raises :class:`json_file.Malformed` with the reason."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise json_file.Malformed("an entry with dtype, shape and data_offsets needed")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise json_file.Malformed("dtype %r is not known" % (dtype,))
    if not _counts(shape) or len(shape) > 8:
        raise json_file.Malformed("shape %r is no list of sizes" % (shape,))
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise json_file.Malformed("data_offsets %r are no range" % (offsets,))
    needed = prod(shape) * SIZES[dtype]
    if offsets[1] - offsets[0] != needed:
        found = (offsets[1] - offsets[0], dtype, list(shape), needed)
        raise json_file.Malformed("%d bytes stored, %s %s has %d" % found)
    return Stored(file, name, dtype, tuple(shape), offsets[0], offsets[1])


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _ranges(file: str, entries: list[Stored], payload: int) -> list[Problem]:
    """Byte ranges follow each other without overlap or gap and end where the file ends."""
    problems, at = [], 0
    for entry in entries:
        if entry.begin != at:
            word = "overlaps the tensor before it" if entry.begin < at else "leaves a gap before it"
            what = "starts at byte %d of the payload and %s, which ends at %d" % (entry.begin, word, at)
            problems.append(Problem(ShardDamaged, file, entry.key, what, COPY % file))
        at = max(at, entry.end)
        if entry.end > payload:
            what = "ends at byte %d of a payload of %d: the file was cut" % (entry.end, payload)
            problems.append(Problem(ShardDamaged, file, entry.key, what, COPY % file))
    if not problems and at != payload:
        what = "%d bytes after the last tensor" % (payload - at)
        problems.append(Problem(ShardDamaged, file, "", what, COPY % file))
    return problems
