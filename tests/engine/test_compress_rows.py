"""Rows of the main and the index cache: layouts, the unpacked model ops, slots, refusals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import quantizers
from deepinfer.engine.ops.compress_rows import index_records
from deepinfer.engine.ops.compressor import pair_up
from deepinfer.engine.ops.dequant import e2m1_values, e4m3_values
from deepinfer.engine.ops.launch import ContractBroken, check
from deepinfer.engine.ops.quantize_rows import ordered_norm, rotate_rounded
from deepinfer.engine.ops.registry import load_all


def first_case(name: str) -> tuple[object, dict[str, torch.Tensor], dict[str, float]]:
    op = load_all()[name]
    case = next(iter(op.cases(torch.Generator().manual_seed(23), "cpu")))
    return op, dict(case.inputs), dict(case.scalars)


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    return e2m1_values()[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()]


def test_an_entry_is_256_bytes_of_codes_and_32_scales() -> None:
    op, inputs, scalars = first_case("rows.entry")
    inputs["slots"] = torch.arange(33) + 20
    found = op.reference(inputs, scalars)
    assert found["cache"].shape == (64, 288)
    assert torch.equal(found["cache"][:20], inputs["before"][:20])
    assert torch.equal(found["cache"][53:], inputs["before"][53:])
    records = found["cache"][20:53]
    scales = e4m3_values()[records[:, 256:].long()].repeat_interleave(16, -1)
    turned = rotate_rounded(found["normed"], inputs["positions"], inputs["freqs"])
    assert torch.equal((nibbles(records[:, :256]) * scales).bfloat16(), quantizers.qdq_fp4_16(turned))


def test_a_block_of_the_index_cache_holds_all_codes_before_the_scales() -> None:
    op, inputs, scalars = first_case("rows.index_key")
    assert scalars["entries"] == 64
    inputs["slots"] = torch.arange(40) + 100  # 28 in block 1, 12 in block 2
    cache = op.reference(inputs, scalars)["cache"]
    assert cache.shape == (3, 64 * 68)
    assert torch.equal(cache[0], inputs["before"][0])
    normed = ordered_norm(inputs["x"], inputs["weight"], 1e-20)
    wanted = quantizers.qdq_fp4_32(rotate_rounded(normed, inputs["positions"], inputs["freqs"]))
    for token, block, place in ((0, 1, 36), (27, 1, 63), (28, 2, 0), (39, 2, 11)):
        codes = cache[block, place * 64 : (place + 1) * 64]
        scales = cache[block, 64 * 64 + place * 4 : 64 * 64 + (place + 1) * 4]
        powers = torch.pow(2.0, scales.double() - 127.0).repeat_interleave(32)
        assert torch.equal((nibbles(codes) * powers).bfloat16(), wanted[token])
    codes, scales = index_records(cache, 64)
    assert codes.shape == (3, 64, 64)
    assert scales.shape == (3, 64, 4)


@pytest.mark.parametrize("name", ["rows.entry", "rows.index_key"])
def test_slots_outside_the_cache_write_nothing(name: str) -> None:
    op, inputs, scalars = first_case(name)
    inputs["slots"] = torch.full_like(inputs["slots"], -1)
    inputs["slots"][::2] = 1 << 20
    assert torch.equal(op.reference(inputs, scalars)["cache"], inputs["before"])


def test_a_pair_of_equal_gates_is_a_mean_and_a_far_one_the_heavier_value() -> None:
    op, inputs, scalars = first_case("compressor.pair")
    latent = op.reference(inputs, scalars)["latent"].bfloat16()
    values = inputs["values"]
    assert torch.allclose(latent[0, :8].float(), values[:2, :8].mean(0), atol=1e-2)
    assert torch.equal(latent[0, 8:16], values[0, 8:16].bfloat16())


def test_the_fused_entry_is_the_entry_of_the_latent() -> None:
    op, inputs, scalars = first_case("compressor.pair_entry")
    fused = op.reference(inputs, scalars)
    latent = pair_up(inputs["gates"], inputs["values"]).bfloat16()
    alone = load_all()["rows.entry"].reference({**inputs, "x": latent}, scalars)
    assert torch.equal(fused["cache"], alone["cache"])
    assert torch.equal(fused["normed"], alone["normed"])


def test_the_contract_refuses_a_cache_of_other_records_and_odd_gates() -> None:
    op, inputs, scalars = first_case("rows.entry")
    normed = torch.empty_like(inputs["x"])
    cache = torch.empty_like(inputs["before"])
    check(op.contract, {**inputs, "cache": cache, "normed": normed}, scalars)
    with pytest.raises(ContractBroken, match="cache"):
        check(op.contract, {**inputs, "cache": cache[:, :272].contiguous()}, scalars)
    with pytest.raises(ContractBroken, match="eps"):
        check(op.contract, {**inputs, "cache": cache}, {})
    op, inputs, scalars = first_case("compressor.pair")
    with pytest.raises(ContractBroken, match="gates"):
        inputs["gates"] = inputs["gates"][:-1]
        check(op.contract, {**inputs, "latent": torch.empty(17, 512, dtype=torch.bfloat16)}, scalars)
