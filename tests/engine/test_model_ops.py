"""The torch ops of the model: published or hand-computed values, definitions in plain loops, tie rules."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint.primes import table_primes
from deepinfer.engine.ops import engram, mhc, moe, quantizers, selection
from deepinfer.engine.ops.attention import attend, window_mask
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.rope import frequencies, rotate


def test_norm_of_zeros_is_zero_and_of_anything_has_unit_mean_square():
    weight = torch.ones(64)
    assert torch.equal(rms_norm(torch.zeros(2, 64), weight, 1e-20), torch.zeros(2, 64))
    out = rms_norm(torch.randn(5, 64) * 1e-6, weight, 1e-20)
    assert torch.allclose(out.square().mean(-1), torch.ones(5), atol=1e-4)


def test_yarn_frequencies_of_the_release():
    yarn = {"factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 65536.0}
    found = frequencies(64, 160000.0, yarn)
    places = [0, 15, 16, 20, 24, 25, 31]
    known = [1.0, 3.635539e-3, 2.265625e-3, 2.969778e-4, 1.953125e-5, 5.372312e-6, 5.680529e-7]
    assert torch.allclose(found[places], torch.tensor(known), rtol=1e-6)


def test_rotation_is_undone_by_its_inverse_and_keeps_the_leading_channels():
    x = torch.randn(6, 3, 40)
    freqs = frequencies(16, 10000.0)
    positions = torch.tensor([0, 1, 2, 77, 1000, 4095])
    turned = rotate(x, positions, freqs)
    assert torch.equal(turned[..., :24], x[..., :24])
    assert torch.equal(turned[0], x[0])
    assert torch.allclose(rotate(turned, positions, freqs, inverse=True), x, atol=1e-5)
    even, odd = x[1, 0, 24].item(), x[1, 0, 25].item()
    assert turned[1, 0, 24].item() == pytest.approx(even * math.cos(1.0) - odd * math.sin(1.0), abs=1e-6)


def test_hyper_connection_coefficients_of_a_known_input():
    m = torch.tensor([math.sin(i) for i in range(1, 25)])
    base = torch.tensor([0.1 * math.cos(i) for i in range(24)])
    streams = torch.zeros(1, 4, 24)
    streams[0, 0] = 1.0  # its mean square over 4 * 24 channels is 1/4, so the statistic doubles
    fn = torch.zeros(24, 96)
    fn[:, 0] = m / 2.0
    found = mhc.mix(streams, fn, base, torch.tensor([1.0, 0.5, 2.0]), iterations=20, eps=1e-6, norm_eps=1e-20)
    pre, post, comb = (value[0] for value in found)
    assert torch.allclose(pre, torch.tensor([0.719398, 0.723789, 0.524857, 0.298218]), atol=2e-6)
    assert torch.allclose(post, torch.tensor([0.734131, 0.944387, 1.209124, 1.277558]), atol=2e-6)
    rows = [
        [0.419492, 0.196652, 0.159374, 0.224482],
        [0.044164, 0.476456, 0.447288, 0.032091],
        [0.003811, 0.021290, 0.283733, 0.691165],
        [0.532532, 0.305601, 0.109605, 0.052261],
    ]
    assert torch.allclose(comb, torch.tensor(rows), atol=2e-6)


def test_expand_sums_over_the_first_index():
    x, streams = torch.zeros(1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    comb = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])
    out = mhc.expand(x, streams, torch.ones(1, 2), comb)
    assert out.tolist() == [[[0.0, 0.0], [1.0, 0.0]]]


def block(*values: float, width: int = 32) -> torch.Tensor:
    return torch.tensor([[*values, *[0.0] * (width - len(values))]])


def test_quantizers_give_the_known_values():
    fp8 = quantizers.qdq_fp8_32(block(450.0, 4.25, 3 * 2.0**-9))
    assert fp8[0, :3].tolist() == [448.0, 4.0, 2.0**-7]
    small = quantizers.qdq_fp8_32(block(1e-6, 1e-9))
    assert small[0, :2].tolist() == [4 * 2.0**-22, 2.0**-30]
    assert quantizers.qdq_fp4_32(block(6.5, 5.0, 3.0, 0.375))[0, :4].tolist() == [6.0, 4.0, 3.0, 0.0]
    wide = quantizers.qdq_fp4_16(block(7.0, 2.8125, 0.5625, 1.4, width=16))
    assert wide[0, :4].tolist() == [6.75, 2.25, 0.5625, 1.125]


@pytest.mark.parametrize("name", ["qdq_fp8_32", "qdq_fp4_32", "qdq_fp4_16"])
def test_quantizers_are_the_native_ones_bit_for_bit(name):
    from deepinfer.engine.native import load
    from deepinfer.errors import DeepInferError

    try:
        native = load()
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(512, 256, generator=generator) * torch.exp2(torch.randint(-30, 30, (512, 1), generator=generator))
    x = x.to(torch.bfloat16).float()
    ours, out = getattr(quantizers, name)(x), torch.full_like(x, float("nan"))
    getattr(native, name)(x, out)
    assert torch.equal(ours + 0.0, out + 0.0)  # the sign of zero may differ


def test_attention_is_its_definition():
    generator = torch.Generator().manual_seed(2)
    query, window, entries = (torch.randn(*s, generator=generator) for s in ((3, 2, 8), (4, 8), (5, 8)))
    masks = torch.rand(3, 9, generator=generator) < 0.6
    masks[2] = False
    sink = torch.randn(2, generator=generator)
    out = attend(query, window, masks[:, :4], entries, masks[:, 4:], sink)
    keys = torch.cat([window, entries]).double()
    for t in range(3):
        for h in range(2):
            weight = [math.exp(float(query[t, h].double() @ keys[n]) / 8**0.5) for n in range(9) if masks[t, n]]
            total = sum(weight) + math.exp(float(sink[h]))
            seen = [keys[n] for n in range(9) if masks[t, n]]
            wanted = sum((w * k for w, k in zip(weight, seen, strict=True)), torch.zeros(8).double()) / total
            assert torch.allclose(out[t, h].double(), wanted, atol=1e-6)


def test_window_holds_the_token_itself_and_the_width_before_it():
    mask = window_mask(torch.tensor([0, 5]), torch.arange(8), 3)
    assert mask.int().tolist() == [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]]


def test_equal_scores_go_to_the_lower_index():
    score = torch.tensor([[1.0, 2.0, 2.0, 2.0, -0.0 + 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    chosen = selection.top_k(score, torch.ones(2, 5, dtype=torch.bool), 2)
    assert chosen.int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    few = selection.top_k(score, torch.tensor([[False, False, False, True, False]] * 2), 2)
    assert few.int().tolist() == [[0, 0, 0, 1, 0]] * 2
    negative = selection.scores(torch.zeros(1, 2, 4), torch.ones(3, 4), torch.tensor([[-1.0, -1.0]]))
    assert not torch.signbit(negative).any()


def test_candidates_keep_the_block_of_the_newest_entry():
    score = torch.arange(20.0).flip(0)[None, :].repeat(2, 1)
    kept = selection.candidate_blocks(score, torch.tensor([20, 10]), 4, 2)
    assert kept[0].int().tolist() == [1] * 4 + [0] * 12 + [1] * 4
    assert kept[1].int().tolist() == [1] * 4 + [0] * 4 + [1] * 2 + [0] * 10


def test_router_chooses_with_the_bias_and_weighs_without_it():
    x, gate = torch.tensor([[1.0]]), torch.tensor([[0.5], [0.4], [0.1], [0.4]])
    ids, weights = moe.route(x, gate, torch.tensor([0.0, 0.0, 9.0, 0.0]), 2, 1.5)
    assert ids.tolist() == [[2, 0]]
    score = torch.nn.functional.softplus(torch.tensor([0.1, 0.5])).sqrt()
    assert torch.allclose(weights[0], score / score.sum() * 1.5)
    assert moe.route(x, gate, torch.zeros(4), 3, 1.0)[0].tolist() == [[0, 1, 3]]


def test_swiglu_clamps_the_gate_above_only_and_the_other_side_both_ways():
    gate, up = torch.tensor([[20.0, -20.0]]), torch.tensor([[30.0, -30.0]])
    out = moe.swiglu(gate, up, torch.tensor([0.5]), 10.0)
    silu = torch.nn.functional.silu(torch.tensor([10.0, -20.0]))
    assert torch.allclose(out[0], 0.5 * silu * torch.tensor([10.0, -10.0]))


ENGRAM = {
    1: (
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        (4449004, 17571959, 128589888, 149698784, 268272278, 283332992, 369904649),
    ),
    14: (
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
        (15143247, 22529278, 134948014, 147996107, 267543071, 280694543, 378459855),
    ),
}


@pytest.mark.parametrize("layer", ENGRAM)
def test_engram_hashes_of_the_release(layer):
    factors, known = ENGRAM[layer]
    assert engram.multipliers(layer, 99092, 4) == factors
    primes = table_primes(2, 4, 8, 16000000)[[1, 14].index(layer)]
    ids = torch.tensor([0, 0, 0, 5, 7, 11, 13])
    dead = torch.tensor([True] * 3 + [False] * 4)
    rows = engram.rows(ids, dead, 3, 2, factors, primes)
    assert rows[3][[0, 1, 8, 9, 16, 17, 23]].tolist() == list(known)


def test_engram_looks_back_no_further_than_the_first_dead_token():
    primes = table_primes(1, 4, 2, 256)[0]
    factors = engram.multipliers(1, 512, 4)
    ids = torch.tensor([9, 9, 9, 30, 31, 32, 33])
    free = torch.zeros(7, dtype=torch.bool)
    cut = free.clone()
    cut[4] = True
    rows, shorter = (engram.rows(ids, dead, 3, 2, factors, primes) for dead in (free, cut))
    padded = ids.clone()
    padded[:5] = 2
    assert torch.equal(shorter[2:], engram.rows(padded, free, 3, 2, factors, primes)[2:])
    assert torch.equal(rows[0], shorter[0])
    assert not torch.equal(rows[3], shorter[3])
