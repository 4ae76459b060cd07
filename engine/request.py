"""One request on its way through the engine, and the one final result that it ends in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from deepinfer.engine.model.state import State
from deepinfer.engine.prompt import Prepared
from deepinfer.engine.sampling import SamplingParams

Logprobs = dict[int, float]


@dataclass
class RequestOutput:
    """The final result. ``finish_reason``: ``stop``, ``length``, or ``error`` with the reason in ``error``.

    ``logprobs``: per generated token the asked-for best ones and the chosen one; ``prompt_logprobs`` likewise per
    prompt token, None for the first, which nothing predicts.
    """

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "error"
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    error: str | None = None


@dataclass
class Request:
    """A request while it runs. ``drafts`` and ``draft_logprobs`` are proposals for the places after the last token.

    ``prompt`` is what the model is fed; ``output.prompt_token_ids`` shows it with placeholders.
    """

    output: RequestOutput
    params: SamplingParams
    state: State
    prompt: Prepared
    drafts: list[int] = field(default_factory=list)
    draft_logprobs: list[torch.Tensor] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.output.finish_reason != ""


def best(logprobs: torch.Tensor, count: int, chosen: int) -> Logprobs:
    """The ``count`` largest entries of ``logprobs`` [V] and the chosen one, largest first."""
    order = torch.sort(logprobs, descending=True, stable=True).indices[:count].tolist()
    ids = order if chosen in order else [*order, chosen]
    return {int(token): float(logprobs[token]) for token in ids}
