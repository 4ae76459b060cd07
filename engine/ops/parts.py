"""Parts of a case: the same rows in a smaller call, for holding an op to its promise of batch invariance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from deepinfer.engine.ops.contract import Case, Contract
from deepinfer.engine.ops.launch import dimensions, evaluate

if TYPE_CHECKING:
    import torch

    from deepinfer.engine.ops.contract import Tensors


def parts(contract: Contract, case: Case, rows: int) -> Iterator[tuple[Case, int, int]]:
    """(smaller case, first row, end) of one row from the middle and of the rows behind the first third."""
    middle, third = rows // 2, rows // 3
    for begin, end in sorted({(middle, middle + 1), (third, rows)}):
        inputs = {name: _rows(contract, name, tensor, begin, end, rows) for name, tensor in case.inputs.items()}
        out = {name: (_shape(contract, name, shape, end - begin), dtype) for name, (shape, dtype) in case.out.items()}
        yield replace(case, inputs=inputs, out=out), begin, end


def same(contract: Contract, case: Case, whole: Tensors, part: Tensors, begin: int, end: int, rows: int) -> str:
    """Empty, or the first output whose rows differ in any bit; ``nothing`` if no output could be compared.

    A pool into which rows are written has no row of its own per row of the call. What the smaller call has changed in
    it, against its input ``before``, must be what the whole call wrote at that place.
    """
    compared = False
    for name, tensor in part.items():
        argument = next(argument for argument in contract.arguments if argument.name == name)
        before = case.inputs.get("before")
        if argument.intent == "work":
            continue
        if _factor(contract, name):
            wanted = _bytes(_rows(contract, name, whole[name], begin, end, rows))
            differs = wanted != _bytes(tensor)
            compared = True
        elif before is not None and before.shape == tensor.shape:
            written = _bytes(tensor) != _bytes(before)
            differs = written & (_bytes(whole[name]) != _bytes(tensor))
            compared = compared or bool(written.any()) or end - begin == 1  # a single row may have no slot
        else:
            continue
        if bool(differs.any()):
            return name
    return "" if compared else "nothing"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(torch.uint8)


def _leading(contract: Contract, name: str) -> str:
    argument = next(argument for argument in contract.arguments if argument.name == name)
    return (dimensions(argument.shape) or [""])[0]


def _factor(contract: Contract, name: str) -> int:
    """How many entries of the first axis belong to one row; 0 where the axis counts something else."""
    leading = _leading(contract, name)
    if leading == contract.batch:
        return 1
    if leading.endswith("* " + contract.batch):
        return int(evaluate(leading, {contract.batch: 1}))
    return 0


def _rows(contract: Contract, name: str, tensor: torch.Tensor, begin: int, end: int, rows: int) -> torch.Tensor:
    factor = _factor(contract, name)
    return tensor[begin * factor : end * factor].clone() if factor and tensor.shape[0] == rows * factor else tensor


def _shape(contract: Contract, name: str, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    argument = next(argument for argument in contract.arguments if argument.name == name)
    words = dimensions(argument.shape)
    return tuple(
        count * int(evaluate(word, {contract.batch: 1}))
        if word == contract.batch or word.endswith("* " + contract.batch)
        else size
        for word, size in zip(words, shape, strict=True)
    )
