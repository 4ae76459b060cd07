"""Bounded replay: mask and compact give the same kept rows, all kept is off, and decode goes on after it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
for package in ("safetensors", "tokenizers"):
    pytest.importorskip(package, reason=f"not run: {package} is not installed")

from tiny_text import config, draft_parameters, model, parameters

from deepinfer import LLM
from deepinfer.engine.checkpoint.errors import ConfigRefused
from deepinfer.engine.checkpoint.tiny import make
from deepinfer.engine.model.draft import DraftModel
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.replay import bounded
from deepinfer.engine.model.state import State
from deepinfer.engine.sampling import RequestRefused, SamplingParams
from deepinfer.errors import UsageError

LENGTH, PROMPT, KEEP = 150, 137, 22
ABSOLUTE = 1e-5  # products of other shapes round otherwise; where the shapes are equal, so are the bits
BORDER = config().prefill_layers


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 500, (LENGTH,), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def text():
    return model(3)


def run(text, mode, keep, ids, chunks, prompt=PROMPT):
    """(hidden of all rows that were computed, taps, state) with ``mode`` for a prompt of ``prompt`` tokens."""
    text.replay = bounded(text.config, mode, keep)
    state, hidden, taps, start = State(text.config, LENGTH + 6), [], [], 0
    text.replay.prepare(state, prompt)
    for size in chunks:
        out = text.forward(ids[start : start + size], state)
        hidden.append(out.hidden)
        taps.append(out.taps)
        start += size
    text.replay = bounded(text.config, "off")
    return torch.cat(hidden), torch.cat(taps), state


def largest(one, other):
    return float((one - other).abs().max())


CHUNKS = {
    "at once": [137],
    "cut before the kept": [50, 50, 37],
    "cut in the kept": [60, 60, 17],
    "short": [7] * 19 + [4],
}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("keep", [22, 40, 136])
def test_mask_and_compact_agree_on_the_kept_rows(name, keep, text, ids):
    masked, masked_taps, one = run(text, "mask", keep, ids, CHUNKS[name])
    hidden, taps, other = run(text, "compact", keep, ids, CHUNKS[name])
    assert masked.shape[0] == PROMPT
    assert hidden.shape[0] == taps.shape[0] == keep
    assert largest(masked[-keep:], hidden) < ABSOLUTE
    assert largest(masked_taps[-keep:], taps) < ABSOLUTE * float(taps.abs().max())  # not normed: they reach 78
    assert largest(one.window, other.window) < ABSOLUTE
    assert one.length == other.length == PROMPT
    for layer, entries in one.entries.items():
        assert torch.equal(entries, other.entries[layer]), layer
        assert torch.equal(one.index_keys[layer], other.index_keys[layer]), layer


def test_a_forward_of_kept_rows_alone_is_equal_bit_for_bit(text, ids):
    chunks = [PROMPT - KEEP, KEEP]
    masked, _, _ = run(text, "mask", KEEP, ids, chunks)
    hidden, _, _ = run(text, "compact", KEEP, ids, chunks)
    assert torch.equal(masked[-KEEP:], hidden)


@pytest.mark.parametrize("mode", ["mask", "compact"])
@pytest.mark.parametrize("keep", [PROMPT, PROMPT + 1])
def test_keeping_everything_is_off_exactly(mode, keep, text, ids):
    off, taps, state = run(text, "off", None, ids, [70, 67])
    hidden, other_taps, other = run(text, mode, keep, ids, [70, 67])
    assert torch.equal(off, hidden)
    assert torch.equal(taps, other_taps)
    assert torch.equal(state.window, other.window)


def test_what_is_dropped_changes_the_upper_layers_only(text, ids):
    off, _, whole = run(text, "off", None, ids, [PROMPT])
    hidden, _, state = run(text, "compact", KEEP, ids, [PROMPT])
    assert torch.equal(state.window[:BORDER], whole.window[:BORDER])
    for layer, entries in whole.entries.items():
        assert torch.equal(entries, state.entries[layer]), layer
    # the first kept row misses its whole window, and with it the sum in every attention
    assert largest(hidden[0], off[-KEEP]) > 0.05
    assert largest(hidden[-1], off[-1]) > 1e-4


def test_the_first_kept_row_sees_itself_alone_in_its_window(text, ids):
    low = PROMPT - KEEP
    hidden, _, state = run(text, "compact", KEEP, ids, [PROMPT])
    keys, positions = state.last_window(BORDER, 100)
    assert positions.tolist() == list(range(low, PROMPT))
    assert keys.abs().amin(1).max() > 0.0
    assert state.last_window(BORDER - 1, 16)[1].tolist() == list(range(PROMPT - 16, PROMPT))
    assert state.last_window(text.config.num_hidden_layers, 100)[1].tolist() == list(range(low, PROMPT))
    changed = ids.clone()
    changed[low + 1 :] = 7
    assert largest(run(text, "compact", KEEP, changed, [PROMPT])[0][0], hidden[0]) < ABSOLUTE


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_decode_and_rewinding_go_on_after_it(mode, text, ids):
    tail = [1] * (LENGTH - PROMPT)
    expected, _, _ = run(text, "mask", KEEP, ids, [PROMPT, LENGTH - PROMPT])
    hidden, _, state = run(text, mode, KEEP, ids, [PROMPT, *tail])
    assert largest(hidden[-len(tail) :], expected[-len(tail) :]) < ABSOLUTE
    _, _, state = run(text, mode, KEEP, ids, [PROMPT])
    for count in (6, 3, 1):
        text.forward(torch.full((count,), 9), state)
        state.rewind(PROMPT)
    assert largest(text.forward(ids[PROMPT:], state).hidden, expected[-len(tail) :]) < ABSOLUTE
    _, _, state = run(text, mode, KEEP, ids, [PROMPT])
    state.rewind(PROMPT - 6)  # as far back as a state goes: the window of the row there is kept whole
    assert largest(text.forward(ids[PROMPT - 6 :], state).hidden[6:], expected[-len(tail) :]) < ABSOLUTE


def test_drafts_are_the_same_from_both(ids):
    tensors = {**parameters(config(), 3), **draft_parameters(config(), 3)}
    text = model(3)
    text.params = Parameters(tensors, torch.float32)
    text.attention.params = text.params
    draft, found = DraftModel(text), []
    for mode in ("mask", "compact"):
        _, taps, state = run(text, mode, KEEP, ids, [100, 37])
        draft.absorb(taps, state.length - len(taps), state)
        found.append(draft.propose(11, state))
    assert largest(found[0].logits, found[1].logits) < 1e-4
    assert largest(found[0].confidence, found[1].confidence) < ABSOLUTE
    assert found[0].tokens.tolist() == found[1].tokens.tolist()


def test_what_cannot_be_kept_is_refused(text, ids):
    with pytest.raises(UsageError, match="keeps 21 tokens"):
        bounded(text.config, "compact", 21)
    with pytest.raises(UsageError, match="replay is 'some'"):
        bounded(text.config, "some")
    assert bounded(text.config, "mask").keep == 16 + 12
    far = State(text.config, LENGTH, backtrack=8)
    with pytest.raises(ValueError, match="22 kept tokens; decode and rewinding read 24"):
        bounded(text.config, "compact", 22).prepare(far, PROMPT)
    used = State(text.config, LENGTH)
    text.forward(ids[:3], used)
    with pytest.raises(ValueError, match="already holds 3"):
        bounded(text.config, "compact", 22).prepare(used, PROMPT)


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_a_configuration_that_needs_all_rows_further_up_is_refused(mode):
    shape = config(kv_source_layer_ids=(2, 4, 6, 8))
    with pytest.raises(ConfigRefused, match="layer 8 needs all rows beyond 6"):
        bounded(shape, mode)
    assert bounded(shape, "off").mode == "off"


def test_prompt_logprobs_are_refused_with_it():
    SamplingParams(prompt_logprobs=2).check()
    SamplingParams(logprobs=2).check(replay=True)
    with pytest.raises(RequestRefused, match="prompt_logprobs is 2"):
        SamplingParams(prompt_logprobs=2).check(replay=True)


@pytest.mark.parametrize("drafts", [False, True])
def test_the_option_of_llm(drafts, tmp_path, monkeypatch):
    make(tmp_path / "tiny", seed=1)
    monkeypatch.setattr("deepinfer.engine.llm.CHUNK", 50)
    prompts = [list(range(3, 12)), list(range(3, 150))]  # kept whole, and cut
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    tokens = {}
    for mode in ("off", "mask", "compact"):
        llm = LLM(tmp_path / "tiny", kv_quant=False, drafts=drafts, replay=mode)
        tokens[mode] = [output.token_ids for output in llm.generate(prompts, greedy)]
    assert tokens["mask"] == tokens["compact"]
    assert tokens["off"][0] == tokens["mask"][0]
    assert [len(one) for one in tokens["compact"]] == [8, 8]
    refused = llm.generate([prompts[0]], SamplingParams(prompt_logprobs=1))[0]
    assert refused.finish_reason == "error"
    assert "bounded replay" in refused.error
    with pytest.raises(UsageError, match="replay is 'all'"):
        LLM(tmp_path / "tiny", replay="all")
