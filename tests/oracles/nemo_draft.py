"""Compares our draft model with nemo-automodel's DeepSeek-V4.1 DSpark on tiny random weights; prints one JSON object.

Both read the same taps of our text model. Run in an environment of its own, see tests/oracles/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import verdict

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/engine"), str(ROOT / "tests/oracles")]

from nemo_automodel.components.models.deepseek_v41 import dspark as theirs
from nemo_text import their_config
from tiny_text import config, draft_parameters, parameters

from deepinfer.engine.model.draft import DraftModel, Proposal
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text import TextModel

CONTEXTS = (1, 2, 7, 15, 16, 17, 22, 23, 64, 100, 149, 150)
SEEDS = (3, 4, 5)
AT_MOST = {"max_abs_logit_off": 1e-4, "max_abs_confidence_off": 1e-4}
AT_LEAST = {"argmax_agreement_off": 1.0, "argmax_agreement_on": 0.99}


def their_model(tensors: dict[str, torch.Tensor]) -> Any:
    made = theirs.DeepseekV41DSparkModel(their_config().text_config, num_anchors=1, enable_confidence_head=True).eval()
    wanted = {name: tensors[name].clone() for name in tensors if name.startswith(("mtp.", "embed.", "head."))}
    missing, unexpected = made.load_state_dict(made.state_dict_adapter.from_hf(wanted), strict=False)
    if missing or unexpected:
        raise SystemExit("the oracle misses %s and does not know %s" % (missing[:4], unexpected[:4]))
    _read_confidence_before_the_norm(made.mtp[-1])
    return made


def _read_confidence_before_the_norm(stage: Any) -> None:
    """The release's confidence head reads the hidden before the final norm, theirs after it: hand it the former."""
    seen: list[torch.Tensor] = []
    stage.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    stage.confidence_head.register_forward_pre_hook(lambda _, given: (seen[-1], given[1]))


def our_proposal(text: TextModel, ids: torch.Tensor, anchor: int) -> tuple[torch.Tensor, Proposal]:
    """(taps [T, k, D], proposal) of a context absorbed in two parts."""
    draft, half = DraftModel(text), len(ids) // 2
    state = State(text.config, len(ids))
    taps = text.forward(ids, state).taps
    draft.absorb(taps[:half], 0, state)
    draft.absorb(taps[half:], half, state)
    return taps, draft.propose(anchor, state)


def their_proposal(oracle: Any, taps: torch.Tensor, anchor: int, drafts: list[int]) -> tuple[torch.Tensor, ...]:
    """(logits [B, V], confidence [B]) where every row knows the draft before it."""
    shape, count = oracle.config, taps.shape[0]
    before = torch.tensor([[anchor, *drafts[:-1]]])
    inputs = torch.full((1, shape.dspark_block_size), shape.dspark_noise_token_id)
    inputs[0, 0] = anchor
    place = torch.tensor([[count]])
    out = theirs.DeepseekV41DSparkBackbone.forward(
        oracle,
        oracle.embed_tokens(inputs),
        taps.flatten(1).unsqueeze(0),
        position_ids=oracle.build_position_ids(place, count),
        attention_mask=oracle.build_attention_mask(place, torch.ones(1, 1, dtype=torch.bool), count, torch.float32),
        previous_token_ids=before,
    )
    logits = oracle.compute_logits(out.normalized_hidden_states) + out.transition_logits.float()
    return logits[0], torch.sigmoid(out.confidence_pred[0])


@torch.no_grad()
def main() -> int:
    shape, measured = config(), {}
    exact = theirs.quantize_cache
    for name, kv_quant in (("off", False), ("on", True)):
        theirs.quantize_cache = exact if kv_quant else lambda values, **_: values
        logit, confidence, agree, close, rows = 0.0, 0.0, 0, 0, 0
        for seed in SEEDS:
            tensors = {**parameters(shape, seed), **draft_parameters(shape, seed)}
            text = TextModel(
                shape, Parameters(tensors, torch.float32), torch.arange(shape.vocab_size), kv_quant=kv_quant
            )
            oracle = their_model(tensors)
            for count in CONTEXTS:
                generator = torch.Generator().manual_seed(1000 * seed + count)
                *ids, anchor = torch.randint(3, 500, (count + 1,), generator=generator).tolist()
                taps, mine = our_proposal(text, torch.tensor(ids), anchor)
                logits, sure = their_proposal(oracle, taps, anchor, mine.tokens.tolist())
                apart = (mine.logits - logits).abs().amax(-1)
                logit = max(logit, float(apart.max()))
                confidence = max(confidence, float((mine.confidence - sure).abs().max()))
                agree += int((mine.tokens == logits.argmax(-1)).sum())
                close += int((apart <= 1e-4).sum())
                rows += len(sure)
        measured["max_abs_logit_%s" % name] = logit
        measured["max_abs_confidence_%s" % name] = confidence
        measured["rows_within_1e-4_%s" % name] = close / rows
        measured["argmax_agreement_%s" % name] = agree / rows
    return verdict.say(measured, AT_MOST, AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())
