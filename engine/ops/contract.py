"""What an op promises, and the record that ties promise, reference and native versions together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]
    Scalars = Mapping[str, int | float]
    Implementation = Callable[..., None]


@dataclass(frozen=True)
class Argument:
    """One tensor of an op.

    ``shape`` is ``[T, C / 32], in words``: what is in the brackets is checked (:mod:`deepinfer.engine.ops.launch`),
    what follows is for the reader. ``intent`` is ``in``, ``out``, ``inout`` or ``work`` (scratch memory; nothing is
    promised of it). ``tolerance`` overrides the contract's for this output; ``optional`` arguments may be absent.
    """

    name: str
    shape: str
    dtypes: tuple[str, ...]
    intent: str = "in"
    tolerance: float | None = None
    optional: bool = False


@dataclass(frozen=True)
class Contract:
    """The promise. ``tolerance`` 0 means bit for bit; ``ties`` says what happens where two answers are as good.

    ``batch`` names the size that counts independent rows, such as ``T``: a row's result is then the same bits whatever
    other rows are in the call, which conformance holds native versions to. Empty: no such promise.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    scalars: dict[str, str]
    source: str
    tolerance: float = 0.0
    ties: str = "none occur"
    batch: str = ""

    def bound(self, output: str) -> float:
        """The tolerance of one output."""
        own = next((argument.tolerance for argument in self.arguments if argument.name == output), None)
        return self.tolerance if own is None else own


@dataclass(frozen=True)
class Case:
    """One set of inputs. ``inputs`` are tensors, ``scalars`` plain numbers, ``out`` shape and dtype of each output.

    Scratch memory is listed in ``out`` too: it is poisoned like an output, and not compared.
    """

    label: str
    inputs: Tensors
    scalars: Scalars
    out: Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class Op:
    """A registered op.

    ``reference(inputs, scalars) -> outputs`` is torch in fp32 or fp64, written to be read, on any torch device.
    ``cases(generator, device)`` draws fresh random inputs. ``native`` maps a kind of artifact (``cpu``, ``cuda``) to
    ``f(module, inputs, outputs, scalars)``, which fills the outputs. An op without one runs by its reference.
    """

    contract: Contract
    reference: Callable[[Tensors, Scalars], Tensors]
    cases: Callable[[torch.Generator, str], Iterator[Case]]
    native: dict[str, Implementation] = field(default_factory=dict)
