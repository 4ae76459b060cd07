"""How a layer's steps are run: on a device, behind a check of their contracts, or written down to be run later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deepinfer.engine.ops.launch import check
from deepinfer.engine.ops.registry import load_all

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


class Launches:
    """Runs a layer's steps. The base class has torch alone."""

    def op(self, name: str, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        """The registered op ``name``; fills ``outputs``."""
        raise NotImplementedError(name)

    def torch(self, label: str, function: Callable[..., object], *words: Any, **named: Any) -> None:
        """A step that no kernel of ours does: ``function`` of torch into buffers that exist."""
        function(*words, **named)


class Device(Launches):
    """Launches the kernels of ``module`` on the current stream, without checks."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.native = {name: op.native["cuda"] for name, op in load_all().items() if "cuda" in op.native}

    def op(self, name: str, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        """Launches and returns."""
        self.native[name](self.module, inputs, outputs, scalars)


class Checked(Launches):
    """``inner`` behind a check of every argument against the op's contract: for the first run of new buffers."""

    def __init__(self, inner: Launches) -> None:
        self.inner = inner
        self.ops = load_all()

    def op(self, name: str, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        """Raises ``ContractBroken`` before anything is launched."""
        check(self.ops[name].contract, {**inputs, **outputs}, scalars)
        self.inner.op(name, inputs, outputs, scalars)

    def torch(self, label: str, function: Callable[..., object], *words: Any, **named: Any) -> None:
        """As ``inner`` does it."""
        self.inner.torch(label, function, *words, **named)


class Recorder(Launches):
    """Writes down ``steps``, (label, what runs it on ``inner``), and runs none."""

    def __init__(self, inner: Launches) -> None:
        self.inner = inner
        self.steps: list[tuple[str, Callable[[], None]]] = []

    def op(self, name: str, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
        """The label of a linear layer has its shape."""
        label = name
        if name == "linear.fp8":
            label = "%s %d x %d" % (name, *inputs["w_code"].shape)
        self.steps.append((label, lambda: self.inner.op(name, inputs, outputs, scalars)))

    def torch(self, label: str, function: Callable[..., object], *words: Any, **named: Any) -> None:
        """The label begins with ``torch``."""
        self.steps.append(("torch: " + label, lambda: self.inner.torch(label, function, *words, **named)))
