"""From names of stored tensors to names of the engine's parameters.

The engine keeps the release's names but for three things: draft layers are ``draft.layers.N``; the vectors of a mixing
site are members of it (``hc_attn.fn``); and the matrices of all experts of a layer are one parameter with a leading
expert axis, so ``ffn.experts.7.w1.weight`` is row 7 of ``ffn.experts.w1``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from deepinfer.engine.checkpoint.shards import plain

_RULES = (
    (re.compile(r"^mtp\.(\d+)\.(main_proj|main_norm|norm|markov_head|confidence_head)\b"), r"draft.\2"),
    (re.compile(r"^mtp\.(\d+)\."), r"draft.layers.\1."),
    (re.compile(r"\bhc_(attn|ffn)_(fn|base|scale)$"), r"hc_\1.\2"),
    (re.compile(r"\battn\.attn_sink$"), "attn.sink"),
)
_EXPERT = re.compile(r"\.experts\.(\d+)\.(w[123])\.(weight|scale)$")


class Parameter(NamedTuple):
    """Name of a module parameter; ``expert`` is the row of it that a tensor fills, or None for all of it."""

    name: str
    expert: int | None = None


def parameter(stored: str) -> Parameter:
    """The parameter that the tensor of this stored name belongs to. Weight and scale of one matrix have one stem."""
    name = plain(stored)
    for pattern, replacement in _RULES:
        name = pattern.sub(replacement, name)
    expert = _EXPERT.search(name)
    if expert:
        suffix = "" if expert[3] == "weight" else ".scale"
        return Parameter("%s.experts.%s%s" % (name[: expert.start()], expert[2], suffix), int(expert[1]))
    return Parameter(name)
