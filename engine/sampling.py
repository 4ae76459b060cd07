"""How the next token is chosen: parameters of a request, the processed distribution, and draws that need no state.

Every draw is a function of (seed, absolute position, use) by Philox4x32-10, so it does not depend on the batch, on
chunking or on what else runs. Temperature 0 is the true argmax, equal logits to the lower id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from deepinfer.errors import DeepInferError

SAMPLE, DRAFT_SAMPLE, DRAFT_ACCEPT, DRAFT_RESAMPLE = 0, 1, 2, 3  # csrc/core/rng/philox.h: part of what a seed means


class RequestRefused(DeepInferError):
    """A request that cannot be served: its prompt or its sampling parameters are out of range. The others go on."""

    code = "DI601"


@dataclass(frozen=True)
class SamplingParams:
    """Names and meanings as in vLLM. ``top_k`` 0 or -1 and ``top_p`` 1 switch those cuts off; ``seed`` None is 0."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def check(self, *, replay: bool = False) -> None:
        """Raise :class:`RequestRefused` for the first value that is out of range. ``replay``: is bounded replay on."""
        rules = (
            (math.isfinite(self.temperature) and self.temperature >= 0.0, "temperature", "a finite number, 0 or above"),
            (0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1"),
            (self.top_k >= -1, "top_k", "-1 or above"),
            (self.max_tokens >= 1, "max_tokens", "1 or above"),
            (self.seed is None or 0 <= self.seed < 2**64, "seed", "from 0 to 2^64 - 1"),
            (self.logprobs is None or self.logprobs >= 0, "logprobs", "0 or above"),
            (self.prompt_logprobs is None or self.prompt_logprobs >= 0, "prompt_logprobs", "0 or above"),
            (self.prompt_logprobs is None or not replay, "prompt_logprobs", "None while bounded replay is on"),
            (all(self.stops), "stop", "no empty string"),
        )
        for fine, name, needed in rules:
            if not fine:
                raise RequestRefused("%s is %r" % (name, getattr(self, name)), fix="%s: %s" % (name, needed))


def processed(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """fp64 [V]: log-probabilities after temperature, top-p, then top-k; ``-inf`` for what is cut."""
    if params.temperature == 0.0:
        only = torch.full_like(logits, float("-inf"), dtype=torch.float64)
        only[int(logits.argmax())] = 0.0
        return only
    scaled = torch.log_softmax(logits.double() / params.temperature, dim=-1)
    if params.top_p < 1.0 or params.top_k > 0:
        order = torch.sort(scaled, descending=True, stable=True).indices
        keep = torch.ones_like(order, dtype=torch.bool)
        if params.top_p < 1.0:
            ranked = scaled[order].exp()
            keep &= ranked.cumsum(-1) - ranked <= params.top_p
        if params.top_k > 0:
            keep[params.top_k :] = False
        scaled = scaled.masked_fill(torch.ones_like(keep).scatter(0, order[keep], False), float("-inf"))
    return torch.log_softmax(scaled, dim=-1)


def uniform(native: ModuleType, seed: int, position: int, use: int) -> float:
    """In [0, 1), 53 bits: words 0 and 1 of the stream of (seed, position, use)."""
    counter = (0, use, position & 0xFFFFFFFF, position >> 32)
    words = native.philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return float((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2.0**53


def draw(probabilities: torch.Tensor, u: float) -> int:
    """The first id whose cumulated weight exceeds ``u`` times the total; fp64, ids ascending."""
    total = probabilities.double().cumsum(-1)
    found = int(torch.searchsorted(total, u * float(total[-1]), right=True))
    last = int(probabilities.nonzero()[-1])
    return min(found, last)


def pick(native: ModuleType, logprobs: torch.Tensor, params: SamplingParams, position: int, use: int) -> int:
    """A token from processed log-probabilities for the absolute ``position``."""
    if params.temperature == 0.0:
        return int(logprobs.argmax())
    return draw(logprobs.exp(), uniform(native, params.seed or 0, position, use))
