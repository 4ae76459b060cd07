"""Every call that an op makes of a kernel has the words of its C prototype: pointers, int64_t, float, stream."""

from __future__ import annotations

import ctypes
import re
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops.conformance import poisoned
from deepinfer.engine.ops.registry import load_all

ROOT = Path(__file__).resolve().parents[2]
KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int64: "int64_t", ctypes.c_float: "float"}
OWN_CALLS = ("dequant.fp4_row", "dequant.fp8_block")  # the module has methods for these, tests/attest holds them


def prototypes() -> dict[str, list[str]]:
    """Kinds of the arguments of every ``deepinfer_cuda_*`` that a header declares."""
    found = {}
    for header in ROOT.glob("csrc/kernels/*/cuda/*.h"):
        text = re.sub(r"//[^\n]*", "", header.read_text("utf-8"))
        for name, words in re.findall(r"deepinfer_cuda_(\w+)\s*\(([^)]*)\)", text):
            found[name] = [kind_of(" ".join(word.split())) for word in words.split(",")]
    return found


def kind_of(argument: str) -> str:
    if "*" in argument:
        return "pointer"
    return "int64_t" if argument.startswith("std::int64_t") else argument.split()[0]


class Recorder:
    """Stands for a library: keeps the kinds of the words of each call, and launches nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def kernel(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.calls.append((name, [KINDS[type(word)] for word in words]))
            return 0

        return call


@pytest.mark.parametrize(
    "name", sorted(name for name, op in load_all().items() if "cuda" in op.native and name not in OWN_CALLS)
)
def test_calls_have_the_words_of_the_prototype(name: str) -> None:
    op, declared = load_all()[name], prototypes()
    recorder = Recorder()
    for case in op.cases(torch.Generator().manual_seed(time.time_ns() % 2**31), "cpu"):
        outputs = {key: poisoned(shape, dtype, "cpu") for key, (shape, dtype) in case.out.items()}
        op.native["cuda"](recorder, case.inputs, outputs, case.scalars)
    assert recorder.calls
    for kernel, words in recorder.calls:
        assert words == declared[kernel], kernel


def test_every_kernel_is_called_by_an_op() -> None:
    called = set()
    for op in load_all().values():
        if "cuda" in op.native and op.contract.name not in OWN_CALLS:
            recorder = Recorder()
            case = next(iter(op.cases(torch.Generator().manual_seed(1), "cpu")))
            outputs = {key: poisoned(shape, dtype, "cpu") for key, (shape, dtype) in case.out.items()}
            op.native["cuda"](recorder, case.inputs, outputs, case.scalars)
            called |= {kernel for kernel, _ in recorder.calls}
    known = {name for name in prototypes() if name != "error_name" and not name.startswith("dequant_")}
    assert called == known
