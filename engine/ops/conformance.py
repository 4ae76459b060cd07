"""The conformance suite: every registered op against its reference, on fresh random inputs and poisoned outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops import launch, parts
from deepinfer.engine.ops.contract import Case, Op
from deepinfer.engine.ops.registry import load_all

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Implementation

POISON = float("nan")  # an element that nobody wrote is seen


@dataclass(frozen=True)
class Outcome:
    """One case of one op. ``worst`` is the largest error relative to the tolerance's scale; 0 means bit for bit.

    ``what``: the native version against the reference (``op``), its rows in smaller calls against itself (``batch``),
    or the reference on another device (``reference``).
    """

    op: str
    case: str
    passed: bool
    worst: float
    detail: str = ""
    what: str = "op"


def run(module: Any, kind: str, device: str, seed: int, only: Collection[str] | None = None) -> Iterator[Outcome]:
    """Run all ops that have a version for ``kind`` (``cpu`` or ``cuda``) on the torch device ``device``."""
    for name, op in sorted(load_all().items()):
        implementation = op.native.get(kind)
        if implementation is None or (only is not None and name not in only):
            continue
        generator = torch.Generator().manual_seed(seed)
        for case in op.cases(generator, device):
            outputs, sizes = _launched(module, op, implementation, case, device)
            yield compare(name, op, case, outputs)
            if op.contract.batch:
                rows = int(sizes[op.contract.batch])
                yield _alone(module, op, implementation, case, outputs, rows, device)


def _launched(
    module: Any, op: Op, implementation: Implementation, case: Case, device: str
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Outputs, poisoned before, and the sizes of the call."""
    outputs = {key: poisoned(shape, dtype, device) for key, (shape, dtype) in case.out.items()}
    sizes = launch.check(op.contract, {**case.inputs, **outputs}, case.scalars)
    implementation(module, case.inputs, outputs, case.scalars)
    return outputs, sizes


def _alone(
    module: Any,
    op: Op,
    implementation: Implementation,
    case: Case,
    whole: dict[str, torch.Tensor],
    rows: int,
    device: str,
) -> Outcome:
    """Whether rows in smaller calls have the bits that they have in the whole call."""
    contract = op.contract
    for part, begin, end in parts.parts(contract, case, rows) if rows else ():
        outputs, _ = _launched(module, op, implementation, part, device)
        differs = parts.same(contract, part, whole, outputs, begin, end, rows)
        if differs:
            detail = "%s of rows %d to %d differs from that of %d rows" % (differs, begin, end - 1, rows)
            return Outcome(contract.name, case.label, False, float("inf"), detail, "batch")
    return Outcome(contract.name, case.label, True, 0.0, what="batch")


def references(device: str, seed: int) -> Iterator[Outcome]:
    """Run every op's reference on the torch device ``device``, against itself in fp64 on the CPU."""
    for name, op in sorted(load_all().items()):
        for case in op.cases(torch.Generator().manual_seed(seed), device):
            here = op.reference(case.inputs, case.scalars)
            exact = {key: _exact(tensor) for key, tensor in case.inputs.items()}
            wide = dataclasses.replace(case, inputs=exact)
            found = {key: here[key].to("cpu", dtype) for key, (_, dtype) in case.out.items() if key in here}
            yield dataclasses.replace(compare(name, op, wide, found), what="reference")


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """fp32 on the CPU as fp64; whatever else stays as it is: bf16 is an input that is rounded by intent."""
    return tensor.cpu().double() if tensor.dtype == torch.float32 else tensor.cpu()


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor whose every element shows that nobody wrote it: NaN, or a number that no op gives."""
    value = (
        POISON if dtype.is_floating_point else {1: 0xA5 if dtype == torch.uint8 else -91}.get(dtype.itemsize, -77777)
    )
    return torch.full(shape, value, dtype=dtype, device=device)


def compare(name: str, op: Op, case: Case, outputs: dict[str, torch.Tensor]) -> Outcome:
    """The outputs against the reference rounded once to their type."""
    expected = op.reference(case.inputs, case.scalars)
    worst = 0.0
    scratch = {argument.name for argument in op.contract.arguments if argument.intent == "work"}
    for key, got in outputs.items():
        if key in scratch:
            continue
        wanted, bound = expected[key].to(got.dtype), op.contract.bound(key)
        if bound == 0.0:
            same = _bits(got) == _bits(wanted)
            if not bool(same.all()):
                where = tuple(int(part) for part in (~same).nonzero()[0])
                detail = "%s%s is %r, not %r" % (key, list(where), got[where].item(), wanted[where].item())
                return Outcome(name, case.label, False, float("inf"), detail)
            continue
        error = float((got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
        if not error <= bound:  # NaN never passes, and max() would lose it
            return Outcome(name, case.label, False, error, "%s: relative error %.3g" % (key, error))
        worst = max(worst, error)
    return Outcome(name, case.label, True, worst)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
