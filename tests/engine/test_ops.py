"""Every registered op against its reference, and the references against plain definitions."""

from __future__ import annotations

import math
import time

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.native import load
from deepinfer.engine.ops import conformance
from deepinfer.engine.ops.dequant import e2m1_values, e4m3_values, fp4_reference, fp8_reference
from deepinfer.engine.ops.launch import check
from deepinfer.engine.ops.registry import MODULES, load_all, register
from deepinfer.errors import DeepInferError


def native() -> object:
    try:
        return load()
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")


@pytest.mark.parametrize("name", sorted(name for name, op in load_all().items() if "cpu" in op.native))
def test_every_native_op_conforms_on_the_cpu(name: str) -> None:
    seed = time.time_ns() % 2**31
    outcomes = [found for found in conformance.run(native(), "cpu", "cpu", seed) if found.op == name]
    assert outcomes, "an op that no case exercises is not tested"
    assert not [found for found in outcomes if not found.passed], f"seed {seed}"


@pytest.mark.parametrize("name", sorted(load_all()))
def test_every_op_keeps_its_own_contract(name: str) -> None:
    """What cases draw and references give is what the contract says of shapes and dtypes."""
    op = load_all()[name]
    assert op.contract.name == name
    assert op.contract.source and op.contract.summary and op.contract.ties
    assert {argument.intent for argument in op.contract.arguments} <= {"in", "out", "inout", "work"}
    assert set(op.native) <= {"cpu", "cuda"}
    labels = []
    for case in op.cases(torch.Generator().manual_seed(time.time_ns() % 2**31), "cpu"):
        labels.append(case.label)
        outputs = {key: conformance.poisoned(shape, dtype, "cpu") for key, (shape, dtype) in case.out.items()}
        check(op.contract, {**case.inputs, **outputs}, case.scalars)
        given = op.reference(case.inputs, case.scalars)
        for argument in op.contract.arguments:
            if argument.intent in ("out", "inout") and argument.name in outputs:
                assert given[argument.name].shape == outputs[argument.name].shape, (case.label, argument.name)
    assert labels and len(set(labels)) == len(labels)


def test_the_list_of_ops_is_sorted() -> None:
    assert tuple(sorted(MODULES)) == MODULES


@pytest.mark.parametrize("seed", [1, time.time_ns() % 2**31])
def test_references_in_fp32_hold_their_tolerance_against_fp64(seed: int) -> None:
    found = list(conformance.references("cpu", seed))
    assert {outcome.op for outcome in found} == set(load_all())
    assert [outcome for outcome in found if not outcome.passed] == [], f"seed {seed}"
    assert any(outcome.worst > 0.0 for outcome in found)  # the comparison is not one with itself


def test_an_op_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        register(next(iter(load_all().values())))


def test_a_wrong_output_and_an_unwritten_one_fail() -> None:
    op = load_all()["dequant.fp4_row"]
    case = next(iter(op.cases(torch.Generator().manual_seed(7), "cpu")))
    right = op.reference(case.inputs, case.scalars)["out"].to(torch.bfloat16)
    assert conformance.compare("x", op, case, {"out": right.clone()}).passed
    for damage in (float("nan"), 1.0):
        wrong = right.clone()
        wrong[0, -1] = damage if damage != wrong[0, -1] else 2.0
        assert not conformance.compare("x", op, case, {"out": wrong}).passed


def test_value_tables_are_the_formats() -> None:
    e4m3 = e4m3_values()
    assert e4m3[0x7E] == 448.0
    assert e4m3[0x01] == 2.0**-9
    assert e4m3[0x38] == 1.0
    assert math.isnan(e4m3[0x7F]) and math.isnan(e4m3[0xFF])
    finite = e4m3[~e4m3.isnan()]
    assert torch.equal(
        finite.float(), torch.arange(256).to(torch.uint8)[~e4m3.isnan()].view(torch.float8_e4m3fn).float()
    )
    assert e2m1_values().tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_references_follow_the_layout() -> None:
    weight = torch.zeros(1, 16, dtype=torch.uint8)
    weight[0, 0] = 0x72  # column 0: nibble 2 (1.0), column 1: nibble 7 (6.0)
    scale = torch.tensor([[128]], dtype=torch.uint8)
    out = fp4_reference({"weight": weight, "scale": scale}, {})["out"]
    assert out[0, :3].tolist() == [2.0, 12.0, 0.0]
    eight = torch.full((33, 32), 0x38, dtype=torch.uint8)
    out = fp8_reference({"weight": eight, "scale": torch.tensor([[127], [130]], dtype=torch.uint8)}, {"block_rows": 32})
    assert out["out"][31, 0] == 1.0
    assert out["out"][32, 0] == 8.0
