"""The router's reference: against the model's formula, by hand, and that no case hangs on a rounding."""

from __future__ import annotations

import math
import time

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import launch, moe, router
from deepinfer.engine.ops.registry import load_all

SCALARS = {"k": 6, "first": 0, "count": 40, "scaling": 1.5}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(time.time_ns() % 2**31)


def test_rows_are_sorted_by_expert_then_token():
    ids = torch.tensor([[3, 0], [1, 3], [0, 2]], dtype=torch.int32)
    offsets, order = router.sorted_rows(ids, 0, 4)
    assert offsets.tolist() == [0, 2, 3, 4, 6]
    assert order.tolist() == [1, 4, 2, 5, 0, 3]
    offsets, order = router.sorted_rows(ids, 2, 2)
    assert offsets.tolist() == [0, 1, 3]
    assert order.tolist() == [5, 0, 3, -1, -1, -1]
    offsets, order = router.sorted_rows(ids[:0], 0, 4)
    assert offsets.tolist() == [0] * 5 and order.tolist() == []


def test_choice_and_weights_of_known_logits():
    gate = torch.zeros(4, 8)
    gate[:, 0] = torch.tensor([1.0, 2.0, 2.0, -1.0])
    x = torch.zeros(2, 8)
    x[:, 0] = 1.0
    inputs = {
        "x": x.bfloat16(),
        "gate": gate.bfloat16(),
        "bias": torch.zeros(4),
        "image_bias": torch.tensor([0.0, 0.0, 0.0, 9.0]),
        "image": torch.tensor([0, 1], dtype=torch.uint8),
    }
    found = router.route(inputs, {"k": 2, "first": 0, "count": 4, "scaling": 1.5})
    assert found["ids"].tolist() == [[1, 2], [3, 1]]  # of equals the lower; the bias decides alone
    low, high = (math.sqrt(math.log1p(math.exp(v))) for v in (-1.0, 2.0))
    wanted = [0.75, 0.75, 1.5 * low / (low + high), 1.5 * high / (low + high)]
    assert found["weights"].flatten().tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("exact", [True, False])
def test_no_choice_of_a_case_hangs_on_a_rounding(exact: bool):
    inputs = router.draw(50, 1280, 40, 6, generator(), exact=exact)
    bias = torch.where(inputs["image"][:, None] != 0, inputs["image_bias"], inputs["bias"])
    ids, weights = moe.route(inputs["x"], inputs["gate"], bias, 6, 1.5)  # in fp32
    found = router.route(inputs, SCALARS)
    assert torch.equal(found["ids"].long(), ids)
    assert torch.allclose(found["weights"].float(), weights, rtol=1e-4)
    if exact:  # any order of the sum gives the same
        x, gate = inputs["x"].float(), inputs["gate"].float()
        backwards = x.flip(1) @ gate.flip(1).t()
        assert torch.equal(backwards, x @ gate.t())
        assert torch.equal(inputs["gate"][-1], inputs["gate"][-2])


@pytest.mark.parametrize("name", ["moe.route", "router.route"])
def test_choices_of_the_cases_do_not_depend_on_the_order_or_the_precision_of_sums(name: str):
    """Ids are held bit for bit between devices, which sum in different orders."""
    op = load_all()[name]
    for case in op.cases(generator(), "cpu"):
        order = torch.randperm(case.inputs["x"].shape[1])
        shuffled = {key: case.inputs[key][:, order] for key in ("x", "gate")}
        precise = {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in shuffled.items()}
        ids = op.reference(case.inputs, case.scalars)["ids"]
        for inputs in (shuffled, precise):
            assert torch.equal(op.reference({**case.inputs, **inputs}, case.scalars)["ids"], ids), case.label


def test_a_choice_is_close_where_the_next_expert_is_nearly_as_good():
    biased = torch.tensor([[3.0, 2.0, 1.0, 0.99999], [3.0, 2.0, 2.0, 1.0], [3.0, 2.99999, 1.0, 0.0]]).double()
    assert moe.close(biased, 1).tolist() == [False, False, True]
    assert moe.close(biased, 2).tolist() == [False, False, True]
    assert moe.close(biased, 3).tolist() == [True, False, True]


def test_room_for_too_few_rows_is_refused():
    outputs = {name: torch.zeros(0) for name in ("work", "weights", "offsets")}
    outputs |= {"ids": torch.zeros(3, 6, dtype=torch.int32), "order": torch.zeros(17, dtype=torch.int32)}
    inputs = {"x": torch.zeros(3, 16), "gate": torch.zeros(40, 16), "bias": torch.zeros(40)}
    with pytest.raises(launch.ContractBroken, match="fewer rows"):
        load_all()["router.route"].native["cuda"](None, inputs, outputs, SCALARS)


def test_work_holds_one_sum_or_one_for_each_part():
    assert router.parts(1, 5120) == 8
    assert router.parts(64, 128) == 1
    assert router.parts(10**6, 5120) == 1
    held = {case.out["work"][0][0] for case in load_all()["router.route"].cases(generator(), "cpu")}
    assert held == {1, 3, 8}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("x", torch.zeros(3, 16)),
        ("gate", torch.zeros(40, 8, dtype=torch.bfloat16)),
        ("bias", torch.zeros(39)),
        ("image", torch.zeros(3, dtype=torch.int32)),
        ("ids", torch.zeros(3, 6, dtype=torch.int64)),
        ("offsets", torch.zeros(40, dtype=torch.int32)),
        ("order", torch.zeros(3, 6, dtype=torch.int32)),
        ("work", torch.zeros(2, 3, 41)),
    ],
)
def test_what_the_contract_does_not_allow_is_refused_before_a_launch(name: str, wrong: torch.Tensor):
    right = {
        "x": torch.zeros(3, 16, dtype=torch.bfloat16),
        "gate": torch.zeros(40, 16, dtype=torch.bfloat16),
        "bias": torch.zeros(40),
        "image_bias": torch.zeros(40),
        "image": torch.zeros(3, dtype=torch.uint8),
        "work": torch.zeros(1, 3, 40),
        "ids": torch.zeros(3, 6, dtype=torch.int32),
        "weights": torch.zeros(3, 6),
        "offsets": torch.zeros(41, dtype=torch.int32),
        "order": torch.zeros(18, dtype=torch.int32),
    }
    contract = load_all()["router.route"].contract
    launch.check(contract, right, SCALARS)
    with pytest.raises(launch.ContractBroken):
        launch.check(contract, {**right, name: wrong}, SCALARS)
