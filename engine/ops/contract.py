"""What an op promises, and the record that ties promise, reference and native versions together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]
    Implementation = Callable[..., None]


@dataclass(frozen=True)
class Argument:
    """One tensor of an op. ``shape`` is in the words of the contract; ``intent`` is ``in`` or ``out``."""

    name: str
    shape: str
    dtypes: tuple[str, ...]
    intent: str = "in"


@dataclass(frozen=True)
class Contract:
    """The promise. ``tolerance`` 0 means bit for bit; ``ties`` says what happens where two answers are as good."""

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    scalars: dict[str, str]
    source: str
    tolerance: float = 0.0
    ties: str = "none occur"


@dataclass(frozen=True)
class Case:
    """One set of inputs. ``inputs`` are tensors, ``scalars`` plain numbers, ``out`` the outputs' dtype by name."""

    label: str
    inputs: Tensors
    scalars: dict[str, int]
    out: dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass
class Op:
    """A registered op.

    ``reference(inputs, scalars) -> outputs`` is torch in fp32 or fp64, written to be read, on any torch device.
    ``cases(generator, device)`` draws fresh random inputs. ``native`` maps a kind of artifact (``cpu``, ``cuda``) to
    ``f(module, inputs, outputs, scalars)``, which fills the outputs.
    """

    contract: Contract
    reference: Callable[[Tensors, dict[str, int]], Tensors]
    cases: Callable[[torch.Generator, str], Iterator[Case]]
    native: dict[str, Implementation] = field(default_factory=dict)
