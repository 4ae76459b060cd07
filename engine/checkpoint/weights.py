"""Weights as numbers: stored codes through the dequant ops, everything else as it lies in the file.

A product of code and scale has at most 4 significand bits, so bf16 holds it exactly (but for far subnormals). Which
implementation dequantizes is the caller's word: ``native`` raises where the native module is missing or does not fit
this host, ``reference`` is the fp64 definition in torch. Neither ever stands in for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch

from deepinfer.engine import native
from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import coverage, shards
from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.errors import NoSuchTensor, Problem, ValueRefused, raise_for
from deepinfer.engine.checkpoint.inventory import TABLES, Tensor, is_quantised, scale_name, tensors
from deepinfer.engine.checkpoint.names import Parameter, parameter
from deepinfer.engine.checkpoint.shards import COPY, Files, plain
from deepinfer.engine.ops.dequant import fp4_reference, fp8_reference
from deepinfer.engine.progress import Progress
from deepinfer.errors import UsageError

BACKENDS = ("native", "reference")


class Weights:
    """The tensors of one checkpoint whose headers were found complete. ``open_weights`` makes it."""

    def __init__(self, config: Config, files: Files, module: ModuleType | None) -> None:
        self.config = config
        self.files = files
        self._module = module
        self._known = {tensor.name: tensor for tensor in tensors(config)}

    def names(self) -> list[str]:
        """Every tensor that can be loaded, scales left out, as :meth:`load` and :meth:`rows` take them."""
        return [name for name, tensor in self._known.items() if tensor.dtype != "F8_E8M0"]

    def load(self, name: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Tensor ``name`` with codes turned into ``dtype`` (bf16 or fp32); others keep the dtype they are stored in.

        FP8 [o, i] -> [o, i]; FP4 [o, i / 2] -> [o, i]. The result is new memory.
        Engram tables are not loaded whole: see :meth:`rows`.
        """
        tensor = self._find(name)
        if tensor.part == TABLES:
            raise NoSuchTensor("%s is a table, read by rows" % tensor.name, fix="rows(%r, ids)" % tensor.name)
        stored = self.files.tensor(tensor.name)
        if not is_quantised(tensor):
            return stored.clone()
        scale = self.files.tensor(scale_name(tensor.name)).view(torch.uint8)
        block_rows = 0 if tensor.dtype == "I8" else 32
        return self._dequantised(tensor, stored.view(torch.uint8), scale, block_rows, dtype)

    def rows(self, name: str, ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Rows ``ids`` int64 [N] of an Engram table -> [N, width]; only the pages of these rows are read."""
        tensor = self._find(name)
        if tensor.part != TABLES:
            raise NoSuchTensor("%s is no Engram table" % tensor.name, fix="load(%r)" % tensor.name)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < tensor.shape[0]:
            what = "row %d or %d is outside the %d rows of %s"
            values = (int(ids.min()), int(ids.max()), tensor.shape[0], tensor.name)
            raise NoSuchTensor(what % values, fix="hash token ids with the primes of this configuration")
        codes = self.files.tensor(tensor.name).view(torch.uint8)[ids]
        scale = self.files.tensor(scale_name(tensor.name)).view(torch.uint8)[ids]
        return self._dequantised(tensor, codes, scale, 1, dtype)

    def stream(
        self, wanted: Callable[[str], bool], dtype: torch.dtype = torch.bfloat16, progress: Progress | None = None
    ) -> Iterator[tuple[Parameter, torch.Tensor]]:
        """(parameter, tensor) of every stored name that ``wanted`` accepts, tables left out, file by file."""
        chosen = [self._known[name] for name in self.names() if wanted(name) and self._known[name].part != TABLES]
        chosen.sort(key=lambda one: self.files.find(one.name)[0])  # stable: one file after the other
        total, done = sum(one.bytes for one in chosen), 0
        for tensor in chosen:
            loaded = self.load(tensor.name, dtype)
            done += tensor.bytes
            if progress is not None:
                progress(done, total, tensor.name)
            yield parameter(tensor.name), loaded

    def _find(self, name: str) -> Tensor:
        tensor = self._known.get(plain(name))
        if tensor is None or tensor.dtype == "F8_E8M0":
            fix = "the names are those of Weights.names(); scales are applied, not loaded"
            raise NoSuchTensor("%s has no weight %r" % (self.files.folder, name), fix=fix)
        return tensor

    def _dequantised(
        self, tensor: Tensor, codes: torch.Tensor, scale: torch.Tensor, block_rows: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """``block_rows`` 0 for FP4, else the rows that share a scale."""
        if dtype not in (torch.bfloat16, torch.float32):
            raise UsageError("weights are loaded as bfloat16 or float32, not %s" % dtype, fix="dtype=torch.bfloat16")
        if self._module is None:
            return self._reference(tensor, codes, scale, block_rows).to(dtype)
        out = torch.empty((codes.shape[0], codes.shape[1] * (1 if block_rows else 2)), dtype=dtype)
        try:
            if block_rows:
                self._module.dequant_fp8_block(codes, scale, out, block_rows)
            else:
                self._module.dequant_fp4_row(codes, scale, out)
        except ValueError as error:
            raise self._refused(tensor, str(error)) from error
        return out

    def _reference(self, tensor: Tensor, codes: torch.Tensor, scale: torch.Tensor, block_rows: int) -> torch.Tensor:
        if bool((scale == 255).any()):
            raise self._refused(tensor, "scale: 255 (NaN)")
        if not block_rows:
            return fp4_reference({"weight": codes, "scale": scale}, {})["out"]
        if bool(((codes & 127) == 127).any()):
            raise self._refused(tensor, "weight: NaN code")
        return fp8_reference({"weight": codes, "scale": scale}, {"block_rows": block_rows})["out"]

    def _refused(self, tensor: Tensor, what: str) -> ValueRefused:
        name = scale_name(tensor.name) if what.startswith("scale") else tensor.name
        file = self.files.find(name).file
        return ValueRefused((Problem(ValueRefused, file, name, what, COPY % file),))


def open_weights(folder: Path, backend: str) -> Weights:
    """The weights in ``folder``, after config, index, headers and coverage were found right; no payload is read yet.

    ``backend`` is ``native`` or ``reference``; see the module's docstring.
    """
    if backend not in BACKENDS:
        raise UsageError("backend is %r" % backend, fix="one of %s" % ", ".join(BACKENDS))
    module = native.load() if backend == "native" else None
    config = configuration.read(folder)
    files = shards.open_files(folder)
    raise_for(coverage.problems(config, tensors(config), files))
    return Weights(config, files, module)
