"""What can be wrong with a checkpoint: one class and code per kind, and the list that a check collects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepinfer.errors import DeepInferError

SHOWN = 20  # of many problems, this many are printed; `verify --json` has them all


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``file`` is a name inside the folder, ``subject`` a key or a tensor, or empty."""

    kind: type[Refused]
    file: str
    subject: str
    what: str
    fix: str

    @property
    def code(self) -> str:
        """The stable code of docs/errors.md."""
        return self.kind.code

    def text(self) -> str:
        """One line: file, key or tensor, and what is wrong."""
        return ": ".join(part for part in (self.file, self.subject, self.what) if part)

    def row(self) -> dict[str, str]:
        """The problem as a JSON object."""
        return {"code": self.code, "file": self.file, "subject": self.subject, "what": self.what, "fix": self.fix}


class Refused(DeepInferError):
    """A checkpoint that is not used, with every problem that was found; subclasses say which kind came first.

    Raised itself, it says that the folder lacks a file that makes a checkpoint, or that it cannot be read.
    """

    code = "DI501"
    exit_code = 1

    def __init__(self, problems: Sequence[Problem]) -> None:
        first, more = problems[0], problems[1:SHOWN]
        why = "\n       ".join("%s: %s" % (problem.code, problem.text()) for problem in more)
        if len(problems) > SHOWN:
            why += "\n       and %d more; verify DIR --json lists them all" % (len(problems) - SHOWN)
        super().__init__(first.text(), why="also " + why if why else "", fix=first.fix)
        self.problems = tuple(problems)


class ConfigRefused(Refused):
    """config.json is damaged, or asks for a model that this engine does not compute."""

    code = "DI502"


class IndexDamaged(Refused):
    """model.safetensors.index.json is damaged, or names files or tensors that are not there."""

    code = "DI503"


class ShardDamaged(Refused):
    """A safetensors file is missing, cut short, or contradicts itself."""

    code = "DI504"


class TensorMismatch(Refused):
    """A tensor is missing, unknown, stored twice, or of another dtype or shape than the configuration implies."""

    code = "DI505"


class ValueRefused(Refused):
    """A tensor holds a NaN or an infinity."""

    code = "DI506"


class TokenizerMismatch(Refused):
    """tokenizer.json is not the one that the weights were made with."""

    code = "DI507"


class PackageMissing(DeepInferError):
    """A package that only checkpoints need is not installed, or is too old."""

    code = "DI510"
    exit_code = 1


class TargetRefused(DeepInferError):
    """The folder to be written exists already, or cannot be written."""

    code = "DI511"
    exit_code = 1


class DoesNotFit(DeepInferError):
    """The weights do not fit the devices that the plan was asked for."""

    code = "DI512"
    exit_code = 1


class DownloadFailed(DeepInferError):
    """The checkpoint could not be fetched, or the local copy is not there."""

    code = "DI513"
    exit_code = 1


class NoSuchTensor(DeepInferError):
    """A tensor or row was asked for that this checkpoint does not have, or not in the form asked for."""

    code = "DI514"
    exit_code = 1


def raise_for(problems: Iterable[Problem]) -> None:
    """Raise the class of the first of ``problems`` with all of them, or return if there are none."""
    found = tuple(problems)
    if found:
        raise found[0].kind(found)
