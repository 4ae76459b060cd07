"""One request on its way through the engine, and the one final result that it ends in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deepinfer.engine.model.state import State
from deepinfer.engine.progress import Progress
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


class Ahead:
    """How far a batch is, in tokens read and chosen. A request that ends early has done all of its share."""

    def __init__(self, requests: Sequence[Request], show: Progress | None) -> None:
        self.requests = list(requests)
        self.show = show

    def tell(self) -> None:
        """Call ``show`` with tokens done, tokens in all, and what is at hand."""
        if self.show is None:
            return
        done = total = chosen = 0
        for request in self.requests:
            share = len(request.output.prompt_token_ids) + request.params.max_tokens
            chosen += len(request.output.token_ids)
            total += share
            done += share if request.done else request.state.length
        self.show(done, total, "%d tokens chosen" % chosen)


def best(logprobs: torch.Tensor, count: int, chosen: int) -> Logprobs:
    """The ``count`` largest entries of ``logprobs`` [V] and the chosen one, largest first."""
    order = torch.sort(logprobs, descending=True, stable=True).indices[:count].tolist()
    ids = order if chosen in order else [*order, chosen]
    return {int(token): float(logprobs[token]) for token in ids}
