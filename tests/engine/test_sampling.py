"""What the processed distribution keeps, what a draw means, and that drafts leave the distribution as it is."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine import sampling, speculate
from deepinfer.engine.native import load
from deepinfer.engine.sampling import SamplingParams


@pytest.fixture(scope="module")
def native():
    return load()


def kept(logits, **params):
    return (
        torch.isfinite(sampling.processed(torch.tensor(logits), SamplingParams(**params))).nonzero().flatten().tolist()
    )


def test_equal_logits_go_to_the_lower_id():
    assert kept([1.0, 3.0, 3.0, 0.0], temperature=0.0) == [1]
    assert kept([1.0, 3.0, 3.0, 0.0], top_k=1) == [1]


def test_top_p_keeps_the_token_that_crosses_it():
    logits = [math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]
    assert kept(logits, top_p=0.4) == [0]
    assert kept(logits, top_p=0.6) == [0, 1]
    assert kept(logits, top_p=1.0) == [0, 1, 2, 3]


def test_top_k_cuts_after_top_p():
    logits = [math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]
    assert kept(logits, top_p=0.9, top_k=2) == [0, 1]
    assert kept(logits, top_k=-1) == [0, 1, 2, 3]


def test_processed_is_a_distribution_and_temperature_sharpens_it():
    logits = torch.randn(64, generator=torch.Generator().manual_seed(1))
    cold, warm = (sampling.processed(logits, SamplingParams(temperature=value)) for value in (0.3, 1.0))
    for one in (cold, warm):
        assert float(one.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(cold.max()) > float(warm.max())


def test_draw_takes_the_first_id_that_exceeds_and_never_a_cut_one():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [sampling.draw(weights, u) for u in (0.0, 0.2499, 0.25, 1.0 - 2.0**-53)] == [1, 1, 3, 3]


def test_uniform_depends_on_seed_position_and_use(native):
    values = {
        sampling.uniform(native, seed, place, use) for seed in (0, 2**63) for place in (0, 2**33) for use in (0, 1)
    }
    assert len(values) == 8
    assert all(0.0 <= value < 1.0 for value in values)


def test_draws_follow_the_distribution(native):
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    count = 4000
    found = torch.bincount(
        torch.tensor([sampling.draw(probabilities, sampling.uniform(native, 9, place, 0)) for place in range(count)]),
        minlength=4,
    )
    chi_square = float(((found - count * probabilities) ** 2 / (count * probabilities)).sum())
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001; the seed is fixed


def test_accepted_and_replaced_drafts_follow_the_target(native):
    params = SamplingParams()
    target = torch.tensor([0.55, 0.25, 0.15, 0.05], dtype=torch.float64)
    proposed = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    count, found = 4000, torch.zeros(4, dtype=torch.float64)
    for place in range(count):
        draft = sampling.draw(proposed, sampling.uniform(native, 0, place, sampling.DRAFT_SAMPLE))
        first = speculate.verify(native, [draft], [proposed.log()], [target.log()] * 2, params, place)[0]
        found[first] += 1
    chi_square = float(((found - count * target) ** 2 / (count * target)).sum())
    assert chi_square < 16.27


def test_a_draft_that_is_not_the_argmax_falls_at_temperature_zero(native):
    params = SamplingParams(temperature=0.0)
    rows = [sampling.processed(torch.eye(4)[token], params) for token in (2, 3, 1)]
    assert speculate.verify(native, [2, 3], rows[:2], rows, params, 0) == [2, 3, 1]
    assert speculate.verify(native, [2, 0], rows[:2], rows, params, 0) == [2, 3]
    assert speculate.verify(native, [], [], rows[:1], params, 0) == [2]


WRONG = {
    "temperature": (-0.1, math.nan, math.inf),
    "top_p": (0.0, 1.5, math.nan),
    "top_k": (-2,),
    "max_tokens": (0,),
    "seed": (-1, 2**64),
    "logprobs": (-1,),
    "prompt_logprobs": (-1,),
    "stop": ("", ["a", ""]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_each_wrong_parameter_is_refused_by_name(name, value):
    with pytest.raises(sampling.RequestRefused, match=name):
        SamplingParams(**{name: value}).check()
