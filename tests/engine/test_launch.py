"""What is checked before a kernel is launched, and how arguments reach the C ABI."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops.contract import Argument, Contract
from deepinfer.engine.ops.launch import ContractBroken, LaunchFailed, check, dimensions, evaluate, launch

CONTRACT = Contract(
    "test.op",
    "nothing",
    (
        Argument("x", "[T, C / 2], packed", ("uint8",)),
        Argument("scale", "[T, ceil(C / 32)]", ("uint8",)),
        Argument("bias", "[C]", ("float32",), optional=True),
        Argument("out", "[T, C]", ("bfloat16", "float32"), "out"),
    ),
    {"limit": "a bound"},
    "none",
)


def tensors(**changed: Any) -> dict[str, Any]:
    whole = {
        "x": torch.zeros(3, 20, dtype=torch.uint8),
        "scale": torch.zeros(3, 2, dtype=torch.uint8),
        "out": torch.zeros(3, 40),
    }
    whole.update(changed)
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


def test_sizes_are_learned_and_compared() -> None:
    sizes = check(CONTRACT, tensors(bias=torch.zeros(40)), {"limit": 7})
    assert sizes == {"limit": 7, "T": 3, "C": 40}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": None}, "x is missing"),
        ({"x": torch.zeros(3, 20)}, "x is float32"),
        ({"x": torch.zeros(3, 19, dtype=torch.uint8)}, "x has shape [3, 19]: C / 2 is 20, not 19"),
        ({"x": torch.zeros(60, dtype=torch.uint8)}, "x has shape [60]"),
        ({"scale": torch.zeros(3, 1, dtype=torch.uint8)}, "scale has shape [3, 1]: ceil(C / 32) is 2, not 1"),
        ({"scale": torch.zeros(2, 2, dtype=torch.uint8)}, "scale has shape [2, 2]: T is 3, not 2"),
        ({"out": torch.zeros(40, 3).T}, "out has strides (1, 3)"),
        ({"bias": torch.zeros(41)}, "C / 2 is 20.5"),
        ({"more": torch.zeros(1)}, "more is no argument"),
        ({"out": torch.zeros(3, 40, device="meta")}, "the tensors are on cpu and meta"),
    ],
)
def test_what_the_contract_does_not_allow_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractBroken) as found:
        check(CONTRACT, tensors(**changed), {"limit": 7})
    assert said in str(found.value) and "fix: " in str(found.value) and "DI430" in str(found.value)


def test_a_missing_scalar_and_shared_memory_are_refused() -> None:
    with pytest.raises(ContractBroken, match="limit is missing"):
        check(CONTRACT, tensors(), {})
    memory = torch.zeros(3 * 40 * 4, dtype=torch.uint8)
    shared = tensors(x=memory[:60].view(3, 20), out=memory.view(torch.float32).view(3, 40))
    with pytest.raises(ContractBroken, match="out shares memory with x"):
        check(CONTRACT, shared, {"limit": 7})


def test_shapes_are_sums_and_products_of_sizes() -> None:
    assert dimensions("[T, 2 * I, C / 32], of which the first half is the gate") == ["T", "2 * I", "C / 32"]
    assert evaluate("2 * I + 1", {"I": 4}) == 9
    assert evaluate("ceil(R / 32) - 1", {"R": 33}) == 1
    with pytest.raises(ValueError, match="cannot say"):
        evaluate("__import__('os')", {})


class Library:
    """Stands for a compiled library: remembers the words of the call."""

    def __init__(self, code: int) -> None:
        self.code, self.words = code, ()

    def kernel(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.words = (name, *words)
            return self.code

        return call

    def error_name(self, code: int) -> str:
        return f"cudaError {code}"


def test_tensors_become_pointers_and_numbers_their_c_types() -> None:
    library, x = Library(0), torch.zeros(4)
    launch(library, "add", x, None, 3, 0.5)
    name, pointer, nothing, count, factor, stream = library.words
    assert (name, pointer.value, nothing.value, stream.value) == ("add", x.data_ptr(), None, None)
    assert isinstance(count, ctypes.c_int64) and count.value == 3
    assert isinstance(factor, ctypes.c_float) and factor.value == 0.5


def test_a_refusal_of_the_launcher_names_kernel_and_shapes() -> None:
    with pytest.raises(LaunchFailed, match=r"add was not launched: cudaError 1\n.*\[4\], \[2, 3\]"):
        launch(Library(1), "add", torch.zeros(4), torch.zeros(2, 3))
