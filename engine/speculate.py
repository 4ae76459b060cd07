"""Drafts against the target: which of the proposed tokens stand, and what replaces the first that does not.

A draft d stands with probability min(1, q(d) / p(d)), q being the target and p the draft model; the first that falls is
replaced by a draw from max(q - p, 0). The result is distributed as the target alone would be. At temperature 0 a draft
stands if it is the target's argmax. Leviathan et al., arXiv 2211.17192.
"""

from __future__ import annotations

from types import ModuleType

import torch

from deepinfer.engine import sampling
from deepinfer.engine.sampling import SamplingParams


def verify(
    native: ModuleType,
    drafts: list[int],
    draft_logprobs: list[torch.Tensor],
    target_logprobs: list[torch.Tensor],
    params: SamplingParams,
    position: int,
) -> list[int]:
    """The tokens for ``position`` and on: the accepted drafts and one more.

    ``target_logprobs[j]`` is the processed distribution for ``position + j``; there is one more of them than drafts.
    """
    accepted: list[int] = []
    seed = params.seed or 0
    for row, draft in enumerate(drafts):
        target, proposed = target_logprobs[row], draft_logprobs[row]
        place = position + row
        if params.temperature == 0.0:
            best = int(target.argmax())
            accepted.append(best)
            if best != draft:
                return accepted
            continue
        ratio = float((target[draft] - proposed[draft]).exp())
        if sampling.uniform(native, seed, place, sampling.DRAFT_ACCEPT) < min(1.0, ratio):
            accepted.append(draft)
            continue
        rest = (target.exp() - proposed.exp()).clamp_min(0.0)
        if not float(rest.sum()) > 0.0:
            rest = target.exp()
        accepted.append(sampling.draw(rest, sampling.uniform(native, seed, place, sampling.DRAFT_RESAMPLE)))
        return accepted
    place = position + len(drafts)
    accepted.append(sampling.pick(native, target_logprobs[-1], params, place, sampling.SAMPLE))
    return accepted
