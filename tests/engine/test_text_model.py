"""The text model against itself: any chunking, token by token, rewinding; and the draft model's block."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from tiny_text import model

from deepinfer.engine.model.state import State

LENGTH = 150
ABSOLUTE = 1e-4  # fp32, key rounding off; measured here: 1.2e-5


@pytest.fixture(scope="module")
def tiny():
    return model(3)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 500, (LENGTH,), generator=torch.Generator().manual_seed(5))


def logits(text, ids, chunks):
    state, found, start = State(text.config, LENGTH, dtype=text.params.dtype), [], 0
    for size in chunks:
        found.append(text.logits(text.forward(ids[start : start + size], state).hidden))
        start += size
    assert state.length == start
    return torch.cat(found)


@pytest.fixture(scope="module")
def whole(tiny, ids):
    return logits(tiny, ids, [LENGTH])


CHUNKS = {
    "token by token": [1] * LENGTH,
    "odd sizes": [7, 1, 30, 3, 62, 47],
    "one, then the rest": [1, LENGTH - 1],
    "longer than the window": [17, 40, 40, 53],
}


@pytest.mark.parametrize("name", CHUNKS)
def test_any_chunking_is_the_same_function(name, tiny, ids, whole):
    assert (logits(tiny, ids, CHUNKS[name]) - whole).abs().max() < ABSOLUTE


@pytest.fixture(scope="module")
def rounded_whole():
    """(model with key rounding, its logits of four prompts in one forward)."""
    rounded = model(3, kv_quant=True)
    return rounded, [(ids, logits(rounded, ids, [LENGTH])) for ids in (prompt(seed) for seed in range(4))]


def prompt(seed):
    return torch.randint(3, 500, (LENGTH,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CHUNKS)
def test_with_key_rounding_chunks_choose_the_same_tokens(name, rounded_whole):
    """A key on the edge between two codes may fall either way and move every later row by any amount.

    So it is judged by the choices, over all positions of several prompts: rows of one prompt part together.
    """
    rounded, prompts = rounded_whole
    pairs = [(logits(rounded, ids, CHUNKS[name]), expected) for ids, expected in prompts]
    found, expected = (torch.cat(side) for side in zip(*pairs, strict=True))
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() >= 0.99
    assert ((found - expected).abs().amax(-1) < ABSOLUTE).float().mean() >= 0.5


@pytest.mark.parametrize("start", [16, 33, 100, 101])
def test_rewinding_forgets_exactly_what_was_rejected(start, tiny, ids, whole):
    state = State(tiny.config, LENGTH)
    tiny.forward(ids[:start], state)
    for count in (1, 3, 6):
        wrong = torch.randint(3, 500, (count,), generator=torch.Generator().manual_seed(count))
        tiny.forward(wrong, state)
        state.rewind(start)
    after = tiny.logits(tiny.forward(ids[start:], state).hidden)
    assert (after - whole[start:]).abs().max() < ABSOLUTE


def test_rewinding_further_than_the_buffers_reach_is_refused(tiny, ids):
    state = State(tiny.config, LENGTH)
    tiny.forward(ids[:20], state)
    for length in (13, 21, -1):
        with pytest.raises(ValueError, match="cannot rewind"):
            state.rewind(length)
    assert state.length == 20
    state.rewind(17)
    with pytest.raises(ValueError, match="20 were written, and backtrack is 6"):
        state.rewind(13)  # 4 tokens back, but 7 from what the ring holds
    state.rewind(14)


def test_a_full_state_takes_no_more(tiny, ids):
    state = State(tiny.config, 10)
    with pytest.raises(ValueError, match="do not fit"):
        tiny.forward(ids[:11], state)
    assert state.length == 0


def test_a_row_does_not_depend_on_what_comes_after(tiny, ids, whole):
    assert (logits(tiny, ids[:90], [90]) - whole[:90]).abs().max() < ABSOLUTE


def test_fp64_and_fp32_agree(ids, whole):
    wide = model(3, dtype=torch.float64)
    assert (logits(wide, ids, [LENGTH]) - whole).abs().max() < ABSOLUTE


def test_rounding_of_keys_and_of_activations_is_switched_on_by_its_name(ids, whole):
    # A random model is that sensitive: relative noise of 3 % on the same inputs moves the median row by 0.35.
    for other in (model(3, kv_quant=True), model(3, act_quant="fp8")):
        got = logits(other, ids, [LENGTH])
        error = (got - whole).norm(dim=1) / whole.norm(dim=1)
        assert 0.0 < float(error.median()) < 0.7
    with pytest.raises(ValueError, match="act_quant"):
        model(3, act_quant="int4")


def test_image_tokens_take_their_embedding_and_hide_from_engram(tiny, ids):
    marked = ids.clone()
    marked[40:44] = tiny.config.vocab_size + 7
    vectors = torch.randn(4, tiny.config.hidden_size, generator=torch.Generator().manual_seed(1))
    state, other = State(tiny.config, LENGTH), State(tiny.config, LENGTH)
    first = tiny.forward(marked, state, vectors).hidden
    moved = marked.clone()
    moved[40:44] = tiny.config.vocab_size + 9  # another id outside the vocabulary: nothing reads it
    assert torch.equal(first, tiny.forward(moved, other, vectors).hidden)
    assert not torch.allclose(first[44:], tiny.forward(ids, State(tiny.config, LENGTH)).hidden[44:])
