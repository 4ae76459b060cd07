"""Engram on a device, by its references: published rows, rows as stored, the gate, refusals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint.primes import table_primes
from deepinfer.engine.ops import engram
from deepinfer.engine.ops.launch import ContractBroken, check
from deepinfer.engine.ops.registry import load_all


def row_inputs(layer: int, table: int, ids: list[int], places: list[int]) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.tensor(ids),
        "dead": torch.zeros(len(ids), dtype=torch.bool),
        "places": torch.tensor(places),
        "factors": torch.tensor(engram.multipliers(layer, 99092, 4)),
        "primes": torch.tensor(table_primes(2, 4, 8, 16000000)[table]),
    }


def test_rows_of_known_tokens() -> None:
    reference = load_all()["engram_gather.rows"].reference
    first = reference(row_inputs(1, 0, [5, 7, 11, 13], [3, 0]), {"pad": 2})["rows"]
    assert first.shape == (2, 24)
    known = [4449004, 17571959, 128589888, 149698784, 268272278, 283332992, 369904649]
    assert first[0, [0, 1, 8, 9, 16, 17, 23]].tolist() == known
    known = [5412672, 18319159, 143494632, 151789366, 256353435, 276423911, 372009279]
    assert first[1, [0, 1, 8, 9, 16, 17, 23]].tolist() == known
    second = reference(row_inputs(14, 1, [5, 7, 11, 13], [3]), {"pad": 2})["rows"]
    known = [15143247, 22529278, 134948014, 147996107, 267543071, 280694543, 378459855]
    assert second[0, [0, 1, 8, 9, 16, 17, 23]].tolist() == known


def test_places_of_several_requests_in_one_line_are_rows_of_each() -> None:
    generator = torch.Generator().manual_seed(29)
    lines = [torch.randint(0, 99092, (size,), generator=generator).tolist() for size in (9, 4)]
    inputs = row_inputs(1, 0, lines[0] + lines[1], [8, 12, 7])
    inputs["dead"][9] = True  # as where a request begins behind another: its first place is dead
    got = load_all()["engram_gather.rows"].reference(inputs, {"pad": 2})["rows"]
    primes = table_primes(2, 4, 8, 16000000)[0]
    factors = engram.multipliers(1, 99092, 4)
    ids = torch.tensor(lines[0])
    alone = engram.rows(ids, torch.zeros(9, dtype=torch.bool), 3, 2, factors, primes)
    assert torch.equal(got[[2, 0]], alone[-2:])
    ids = torch.tensor(lines[1])
    dead = torch.tensor([True, False, False, False])
    assert torch.equal(got[1:2], engram.rows(ids, dead, 3, 2, factors, primes))


def test_gathered_rows_are_the_stored_bytes_and_missing_ones_are_nan() -> None:
    op = load_all()["engram_gather.gather"]
    case = next(iter(op.cases(torch.Generator().manual_seed(31), "cpu")))
    found = op.reference(case.inputs, case.scalars)
    rows = case.inputs["rows"]
    assert int(rows[0, 0]) == -1 and int(rows[-1, -1]) == 1999
    for token, place in ((0, 0), (-1, -1)):
        assert found["codes"][token, place].unique().tolist() == [0x7F]
        assert found["scales"][token, place].unique().tolist() == [0xFF]
    assert torch.equal(found["codes"][3, 5], case.inputs["table"][rows[3, 5]])
    assert torch.equal(found["scales"][3, 5], case.inputs["scale"][rows[3, 5]])


def test_injection_reads_four_keys_and_a_value_and_leaves_dead_tokens_alone() -> None:
    op = load_all()["engram_gather.inject"]
    case = next(iter(op.cases(torch.Generator().manual_seed(37), "cpu")))
    inputs = dict(case.inputs)
    inputs["dead"] = torch.tensor([True, False, False, False, True])
    out = op.reference(inputs, case.scalars)["out"]
    assert torch.equal(out[[0, 4]], inputs["streams"][[0, 4]])
    kv = inputs["kv"]
    words = inputs["streams"], kv[:, :4], kv[:, 4], inputs["weight"], inputs["dead"], 1e-20
    assert torch.equal(out, engram.inject(*words))
    assert not torch.equal(out[1:4], inputs["streams"][1:4])


def test_the_contract_refuses_scales_of_another_width_and_five_streams() -> None:
    op = load_all()["engram_gather.gather"]
    case = next(iter(op.cases(torch.Generator().manual_seed(31), "cpu")))
    outputs = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in case.out.items()}
    check(op.contract, {**case.inputs, **outputs}, case.scalars)
    with pytest.raises(ContractBroken, match="scale"):
        check(op.contract, {**case.inputs, **outputs, "scale": case.inputs["scale"][:, :4].contiguous()}, case.scalars)
    with pytest.raises(ContractBroken, match="contiguous"):
        check(op.contract, {**case.inputs, **outputs, "table": case.inputs["table"][::2]}, case.scalars)
    op = load_all()["engram_gather.inject"]
    inputs = {name: torch.zeros(2, 5, 64, dtype=torch.bfloat16) for name in ("streams", "kv")}
    inputs.update(weight=torch.zeros(4, 64), dead=torch.zeros(2, dtype=torch.bool))
    with pytest.raises(ContractBroken, match="streams"):
        check(op.contract, inputs, {"eps": 1e-20})
