"""The router as the kernels do it: experts and weights of each token, and the rows of each expert of this rank.

:mod:`deepinfer.engine.ops.moe` has the formula; here the image bias is chosen per token, ids are int32, and the rows
are sorted by expert for the grouped products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.ops import moe
from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.launch import ContractBroken, launch
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors

PART = 640  # channels that one fp32 sum goes over before it is added to those before it
SPLIT_UP_TO = 2048  # tokens; above, a block sums the whole width: docs/kernels/router.md


def parts(tokens: int, width: int) -> int:
    """How many partial sums ``work`` should hold; never changes a result."""
    return -(-width // PART) if tokens <= SPLIT_UP_TO else 1


def sorted_rows(ids: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(offsets int32 [count + 1], order int32 [T * k]): rows ``token * k + slot`` by expert, ascending, then -1."""
    flat = ids.flatten().long() - first
    mine = (flat >= 0) & (flat < count)
    key = torch.where(mine, flat, count)
    order = torch.sort(key, stable=True).indices
    offsets = torch.zeros(count + 1, dtype=torch.int32, device=ids.device)
    offsets[1:] = torch.bincount(key, minlength=count + 1)[:count].cumsum(0)
    here = torch.arange(flat.numel(), device=ids.device) < mine.sum()
    return offsets, torch.where(here, order, -1).int()


def route(inputs: Tensors, scalars: Scalars) -> Tensors:
    """The outputs of the contract, in fp64."""
    bias = inputs["bias"].double().expand(inputs["x"].shape[0], -1)
    if "image" in inputs:
        bias = torch.where(inputs["image"][:, None] != 0, inputs["image_bias"].double(), bias)
    x, gate = inputs["x"].double(), inputs["gate"].double()
    ids, weights = moe.route(x, gate, bias, int(scalars["k"]), scalars["scaling"])
    offsets, order = sorted_rows(ids, int(scalars["first"]), int(scalars["count"]))
    return {"ids": ids.int(), "weights": weights, "offsets": offsets, "order": order}


def _native(module: Any, inputs: Tensors, outputs: Tensors, scalars: Scalars) -> None:
    biases = (inputs["bias"], inputs.get("image_bias"), inputs.get("image"))
    results = (outputs[name] for name in ("work", "ids", "weights", "offsets", "order"))
    sizes = (*inputs["x"].shape, inputs["gate"].shape[0], *(int(scalars[name]) for name in ("k", "first", "count")))
    if outputs["order"].numel() < outputs["ids"].numel():
        raise ContractBroken("router.route: order has room for fewer rows than ids", fix="it is [T * k]")
    pointers = (inputs["x"], inputs["gate"], *biases, *results)
    launch(module, "router_route", *pointers, *sizes, outputs["work"].shape[0], float(scalars["scaling"]))


def draw(tokens: int, width: int, experts: int, k: int, generator: torch.Generator, *, exact: bool) -> Tensors:
    """Fresh inputs of which no choice hangs on a rounding: tokens whose best scores are nearly equal are drawn again.

    ``exact``: values on a grid, so that every sum of products is exact in fp32 in any order; the last two experts are
    the same, so that they always tie.
    """

    def values(rows: int, steps: int, unit: float) -> torch.Tensor:
        if exact:
            return torch.randint(-steps, steps + 1, (rows, width), generator=generator).float() * unit
        return torch.randn(rows, width, generator=generator)

    spread = 3.0 / width**0.5
    gate = (values(experts, 16, 2.0**-6) if exact else values(experts, 0, 0.0) * spread).bfloat16()
    biases = {
        name: torch.randint(-32, 33, (experts,), generator=generator).float() / 64 for name in ("bias", "image_bias")
    }
    if exact:
        gate[-1] = gate[-2]
        for bias in biases.values():
            bias[-1] = bias[-2]
    image = torch.randint(0, 2, (tokens,), generator=generator, dtype=torch.uint8)
    inputs = {"x": values(tokens, 4, 0.25).bfloat16(), "gate": gate, **biases, "image": image}
    while bool((close := _close(inputs, k)).any()):
        inputs["x"][close] = values(int(close.sum()), 4, 0.25).bfloat16()
    return inputs


def _close(inputs: Tensors, k: int) -> torch.Tensor:
    """bool [T]: the choice of a token's ``k`` best, or their order, may hang on a rounding."""
    bias = torch.where(inputs["image"][:, None] != 0, inputs["image_bias"], inputs["bias"]).double()
    return moe.close(moe.scores(inputs["x"].double(), inputs["gate"].double()) + bias, k)


# tokens, width, experts, k, first, count, parts: None is what `parts` says
_SHAPES = (
    (1, 5120, 384, 6, 0, 384, None),
    (13, 5120, 384, 6, 48, 48, None),
    (64, 5120, 384, 6, 0, 384, None),
    (65, 5120, 384, 6, 336, 48, 1),
    (300, 5120, 384, 6, 0, 384, None),
    (300, 5120, 384, 6, 100, 7, 1),
    (7, 5120, 128, 3, 0, 128, None),
    (33, 128, 8, 2, 0, 8, None),
    (90, 1288, 40, 6, 5, 35, None),
    (90, 1288, 512, 32, 0, 512, 1),
    (140, 1288, 100, 6, 0, 100, 1),
    (0, 128, 8, 2, 0, 8, 1),
)


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Few and many tokens, ragged sizes, ranks with some of the experts, with and without images, none at all."""
    for tokens, width, experts, k, first, count, wanted in _SHAPES:
        for exact in (True, False):
            inputs = draw(tokens, width, experts, k, generator, exact=exact)
            if not exact and tokens % 2:
                del inputs["image"], inputs["image_bias"]
                inputs["x"] = inputs["x"][~_close({**inputs, **_no_images(inputs)}, k)]
            tokens_left = inputs["x"].shape[0]
            yield _case((tokens_left, width, experts, k, first, count, wanted), inputs, device, exact)


def _no_images(inputs: Tensors) -> Tensors:
    return {"image": torch.zeros(inputs["x"].shape[0], dtype=torch.uint8), "image_bias": inputs["bias"]}


def _case(sizes: tuple[Any, ...], inputs: Tensors, device: str, exact: bool) -> Case:
    tokens, width, experts, k, first, count, wanted = sizes
    held = wanted or parts(tokens, width)
    out = {
        "work": ((held, tokens, experts), torch.float32),
        "ids": ((tokens, k), torch.int32),
        "weights": ((tokens, k), torch.float32),
        "offsets": ((count + 1,), torch.int32),
        "order": ((tokens * k,), torch.int32),
    }
    scalars: Scalars = {"k": k, "first": first, "count": count, "scaling": 1.5}
    label = "%d of %d, %d tokens of %d, rank has %d..%d, %d parts, %s" % (
        *(k, experts, tokens, width, first, first + count - 1, held),
        "exact sums" if exact else "rounded sums",
    )
    return Case(label, {name: tensor.to(device) for name, tensor in inputs.items()}, scalars, out)


register(
    Op(
        Contract(
            "router.route",
            "the k best experts by sqrt(softplus(x . gate)) + bias, their scores over the sum times scaling, and the "
            "rows token * k + slot by expert. Logits are fp32: sums of 640 channels, then those in ascending order",
            (
                Argument("x", "[T, D], D a multiple of 8", ("bfloat16",)),
                Argument("gate", "[E, D], E at most 512", ("bfloat16",)),
                Argument("bias", "[E], in the choice alone", ("float32",)),
                Argument("image_bias", "[E], for tokens whose image is not 0", ("float32",), optional=True),
                Argument("image", "[T]", ("uint8",), optional=True),
                Argument("work", "[P, T, E], P is 1 or ceil(D / 640), see parts()", ("float32",), "work"),
                Argument("ids", "[T, k], in order of choice; k at most 32", ("int32",), "out"),
                Argument("weights", "[T, k]", ("float32",), "out", tolerance=1e-5),
                Argument("offsets", "[count + 1], where each expert's rows begin in order", ("int32",), "out"),
                Argument("order", "[R], R at least T * k: rows by expert, each ascending, then -1", ("int32",), "out"),
            ),
            {
                "k": "experts per token",
                "first": "the lowest expert whose rows are wanted",
                "count": "how many experts' rows are wanted",
                "scaling": "factor of the weights",
            },
            "Auxiliary-loss-free routing with sqrt-softplus scores; rows as grouped products take them",
            ties="the lower expert",
            batch="T",
        ),
        route,
        _cases,
        {"cuda": _native},
    )
)
