"""From a contract to a launch: what a caller hands in is checked first, then the C ABI is called.

Kernels are plain C functions ``int deepinfer_cuda_<name>(pointers..., int64_t..., float..., void* stream)``; see
csrc/kernels. They launch and return: no allocation, no waiting.
"""

from __future__ import annotations

import ast
import ctypes
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.errors import DeepInferError

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Argument, Contract, Scalars, Tensors

ALIGNMENT = 16  # bytes: the widest load of a kernel
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class ContractBroken(DeepInferError):
    """A tensor is missing, or has a shape, dtype, device, layout or alignment that the op's contract does not allow."""

    code = "DI430"


class LaunchFailed(DeepInferError):
    """A kernel was refused by its launcher, or saw values that its contract does not allow."""

    code = "DI421"


def check(contract: Contract, tensors: Tensors, scalars: Scalars) -> dict[str, float]:
    """Hold ``tensors`` against ``contract``; returns the sizes by name. Raises :class:`ContractBroken`."""
    known = {argument.name: argument for argument in contract.arguments}
    for name in tensors:
        if name not in known:
            raise _broken(contract, name, "is no argument of this op", "the arguments are %s" % ", ".join(known))
    for name in contract.scalars:
        if name not in scalars:
            raise _broken(contract, name, "is missing", "give the scalar: %s" % contract.scalars[name])
    sizes: dict[str, float] = dict(scalars)
    present = [argument for argument in contract.arguments if _given(contract, argument, tensors)]
    for argument in present:
        _bind(contract, argument, tensors[argument.name], sizes)
    for argument in present:
        _match(contract, argument, tensors[argument.name], sizes)
    _together(contract, present, tensors)
    return sizes


def launch(module: Any, name: str, *arguments: torch.Tensor | int | float | None) -> None:
    """Call the kernel ``name`` of ``module`` on the current stream of the first tensor's device.

    Tensors become pointers, None a null pointer, ints ``int64_t``, floats ``float``. Raises :class:`LaunchFailed`.
    """
    words = [_word(word) for word in arguments]
    with on_device_of(arguments) as stream:
        code = module.kernel(name)(*words, ctypes.c_void_p(stream))
    if code != 0:
        shapes = ", ".join(str(list(word.shape)) for word in arguments if isinstance(word, torch.Tensor))
        raise LaunchFailed(
            "%s was not launched: %s" % (name, module.error_name(code)), fix="report it with the shapes %s" % shapes
        )


@contextmanager
def on_device_of(arguments: Iterable[object]) -> Iterator[int]:
    """Make the device of the first CUDA tensor the current one; gives its current stream, 0 on the CPU."""
    first = next((word for word in arguments if isinstance(word, torch.Tensor) and word.is_cuda), None)
    if first is None:
        yield 0
        return
    with torch.cuda.device(first.device):
        yield torch.cuda.current_stream(first.device).cuda_stream


def _word(word: torch.Tensor | int | float | None) -> Any:
    if isinstance(word, torch.Tensor):
        return ctypes.c_void_p(word.data_ptr())
    if word is None:
        return ctypes.c_void_p(None)
    return ctypes.c_int64(int(word)) if isinstance(word, int) else ctypes.c_float(word)


def _broken(contract: Contract, name: str, what: str, fix: str) -> ContractBroken:
    return ContractBroken("%s: %s %s" % (contract.name, name, what), fix=fix)


def _given(contract: Contract, argument: Argument, tensors: Tensors) -> bool:
    if argument.name in tensors:
        return True
    if not argument.optional:
        raise _broken(contract, argument.name, "is missing", "it is %s" % argument.shape)
    return False


def dimensions(shape: str) -> list[str]:
    """The parts between the brackets of a contract's shape."""
    inside = shape[shape.index("[") + 1 : shape.index("]")]
    return [part.strip() for part in inside.split(",") if part.strip()]


def _bind(contract: Contract, argument: Argument, tensor: torch.Tensor, sizes: dict[str, float]) -> None:
    """Learn the sizes that stand alone in the shape; check dtype, layout and alignment."""
    dtype = str(tensor.dtype).rpartition(".")[2]
    if dtype not in argument.dtypes:
        raise _broken(contract, argument.name, "is %s" % dtype, "it must be %s" % " or ".join(argument.dtypes))
    if not tensor.is_contiguous():
        raise _broken(contract, argument.name, "has strides %s" % (tensor.stride(),), "make it contiguous")
    if tensor.numel() and tensor.data_ptr() % ALIGNMENT and tensor.is_cuda:
        raise _broken(contract, argument.name, "starts at %#x" % tensor.data_ptr(), "align it to %d bytes" % ALIGNMENT)
    parts = dimensions(argument.shape)
    if len(parts) != tensor.dim():
        raise _broken(contract, argument.name, "has shape %s" % list(tensor.shape), "it is %s" % argument.shape)
    for part, size in zip(parts, tensor.shape, strict=True):
        if part.isidentifier():
            sizes.setdefault(part, size)


def _match(contract: Contract, argument: Argument, tensor: torch.Tensor, sizes: Mapping[str, float]) -> None:
    for part, size in zip(dimensions(argument.shape), tensor.shape, strict=True):
        wanted = evaluate(part, sizes)
        if wanted != size:
            what = "has shape %s: %s is %g, not %d" % (list(tensor.shape), part, wanted, size)
            raise _broken(contract, argument.name, what, "it is %s" % argument.shape)


def _together(contract: Contract, present: list[Argument], tensors: Tensors) -> None:
    """All on one device; no output shares memory with another tensor."""
    devices = {str(tensors[argument.name].device) for argument in present if not tensors[argument.name].is_pinned()}
    if len(devices) > 1:
        raise ContractBroken(
            "%s: the tensors are on %s" % (contract.name, " and ".join(sorted(devices))), fix="put them on one device"
        )
    spans = []
    for argument in present:
        tensor = tensors[argument.name]
        start = tensor.data_ptr()
        spans.append((start, start + tensor.numel() * tensor.element_size(), argument))
    for start, end, argument in spans:
        for other_start, other_end, other in spans:
            if argument.intent == "in" or other is argument or max(start, other_start) >= min(end, other_end):
                continue
            what = "shares memory with %s" % other.name
            raise _broken(contract, argument.name, what, "give each its own memory")


def evaluate(expression: str, sizes: Mapping[str, float]) -> float:
    """The value of ``C / 32``, ``2 * I`` or ``ceil(R / 32)`` with the sizes put in."""
    return _value(ast.parse(expression, mode="eval").body, sizes)


def _value(node: ast.expr, sizes: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        return left / right if isinstance(node.op, ast.Div) else float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil":
        return math.ceil(_value(node.args[0], sizes))
    raise ValueError("a shape cannot say %s" % ast.dump(node))
