"""The conformance suite: every registered op against its reference, on fresh random inputs and poisoned outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from deepinfer.engine.ops.contract import Case, Op
from deepinfer.engine.ops.registry import load_all

POISON = float("nan")  # an element that nobody wrote is seen


@dataclass(frozen=True)
class Outcome:
    """One case of one op. ``worst`` is the largest error relative to the tolerance's scale; 0 means bit for bit."""

    op: str
    case: str
    passed: bool
    worst: float
    detail: str = ""


def run(module: ModuleType, kind: str, device: str, seed: int) -> Iterator[Outcome]:
    """Run all ops that have a version for ``kind`` (``cpu`` or ``cuda``) on the torch device ``device``."""
    for name, op in sorted(load_all().items()):
        implementation = op.native.get(kind)
        if implementation is None:
            continue
        generator = torch.Generator().manual_seed(seed)
        for case in op.cases(generator, device):
            outputs = {
                key: torch.full(shape, POISON, dtype=dtype, device=device) for key, (shape, dtype) in case.out.items()
            }
            implementation(module, case.inputs, outputs, case.scalars)
            yield compare(name, op, case, outputs)


def compare(name: str, op: Op, case: Case, outputs: dict[str, torch.Tensor]) -> Outcome:
    """The outputs against the reference rounded once to their type."""
    expected = op.reference(case.inputs, case.scalars)
    worst = 0.0
    for key, got in outputs.items():
        wanted = expected[key].to(got.dtype)
        if op.contract.tolerance == 0.0:
            same = _bits(got) == _bits(wanted)
            if not bool(same.all()):
                where = tuple(int(part) for part in (~same).nonzero()[0])
                detail = "%s%s is %r, not %r" % (key, list(where), got[where].item(), wanted[where].item())
                return Outcome(name, case.label, False, float("inf"), detail)
            continue
        error = float((got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
        if not error <= op.contract.tolerance:  # NaN never passes, and max() would lose it
            return Outcome(name, case.label, False, error, "%s: relative error %.3g" % (key, error))
        worst = max(worst, error)
    return Outcome(name, case.label, True, worst)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
