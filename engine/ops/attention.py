"""Attention of one query over its window and its selected entries, with a sink that only enlarges the denominator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.ops.contract import Argument, Case, Contract, Op
from deepinfer.engine.ops.draw import normal
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.registry import register

if TYPE_CHECKING:
    from deepinfer.engine.ops.contract import Scalars, Tensors


def attend(
    query: torch.Tensor,
    window: torch.Tensor,
    window_mask: torch.Tensor,
    entries: torch.Tensor,
    entry_mask: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """[T, H, C] out of ``query`` [T, H, C], keys that are also values, and masks.

    ``window`` [A, C], ``window_mask`` bool [T, A]; ``entries`` [B, C], ``entry_mask`` bool [T, B]; ``sink`` fp32 [H].
    A token that is in both counts twice. Scores are scaled by C^-0.5. A row that sees nothing is 0.
    """
    keys = wide(torch.cat([window, entries]))
    mask = torch.cat([window_mask, entry_mask], dim=1).unsqueeze(1)
    scores = torch.einsum("thc,nc->thn", wide(query), keys) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    top = torch.maximum(scores.amax(-1), sink) if keys.shape[0] else sink.expand(query.shape[:2])
    weight = torch.exp(scores - top.unsqueeze(-1))
    total = weight.sum(-1) + torch.exp(sink - top)
    return (torch.einsum("thn,nc->thc", weight, keys) / total.unsqueeze(-1)).to(query.dtype)


def window_mask(positions: torch.Tensor, key_positions: torch.Tensor, width: int) -> torch.Tensor:
    """bool [T, A]: keys at ``max(0, p - width + 1) .. p``."""
    distance = positions[:, None] - key_positions[None, :]
    return (distance >= 0) & (distance < width)


_FLOATS = ("bfloat16", "float32", "float64")
_NAMES = ("query", "window", "window_mask", "entries", "entry_mask", "sink")


def _reference(inputs: Tensors, scalars: Scalars) -> Tensors:
    return {"out": attend(*(inputs[name] for name in _NAMES))}


def _cases(generator: torch.Generator, device: str) -> Iterator[Case]:
    """Windows with and without entries; in each the first query sees nothing."""
    for rows, heads, width, keys, entries in ((4, 3, 64, 9, 7), (6, 8, 512, 12, 0)):
        masks = [torch.rand(rows, count, generator=generator).to(device) < 0.6 for count in (keys, entries)]
        masks[0][0] = False
        masks[1][0] = False
        inputs = {
            "query": normal((rows, heads, width), generator, device),
            "window": normal((keys, width), generator, device),
            "window_mask": masks[0],
            "entries": normal((entries, width), generator, device),
            "entry_mask": masks[1],
            "sink": normal((heads,), generator, device),
        }
        label = "%dx%dx%d, %d keys, %d entries" % (rows, heads, width, keys, entries)
        yield Case(label, inputs, {}, {"out": ((rows, heads, width), torch.float32)})


register(
    Op(
        Contract(
            "attention.attend",
            "softmax of scaled products over window and entries, with a sink in the denominator; keys are values",
            (
                Argument("query", "[T, H, C]", _FLOATS),
                Argument("window", "[A, C]", _FLOATS),
                Argument("window_mask", "[T, A]", ("bool",)),
                Argument("entries", "[B, C]", _FLOATS),
                Argument("entry_mask", "[T, B]", ("bool",)),
                Argument("sink", "[H]", ("float32", "float64")),
                Argument("out", "[T, H, C], 0 where nothing is seen", _FLOATS, "out"),
            ),
            {},
            "Attention with one shared key-value head and a learned sink; scale C^-0.5",
            tolerance=1e-5,
        ),
        _reference,
        _cases,
    )
)
