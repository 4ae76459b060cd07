"""Batch invariance: a part of a case holds the same rows, and a row that leans on its neighbours is caught."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import conformance, parts
from deepinfer.engine.ops.contract import Argument, Case, Contract, Op

CONTRACT = Contract(
    "test.rows",
    "sums of pairs",
    (
        Argument("pairs", "[2 * T, C]", ("float32",)),
        Argument("table", "[N, C]", ("float32",)),
        Argument("out", "[T, C]", ("float32",), "out"),
        Argument("work", "[4, T, C]", ("float32",), "work"),
    ),
    {},
    "none",
    batch="T",
)
T = 6


def case() -> Case:
    generator = torch.Generator().manual_seed(3)
    inputs = {"pairs": torch.randn(2 * T, 4, generator=generator), "table": torch.randn(2 * T, 4, generator=generator)}
    out = {"out": ((T, 4), torch.float32), "work": ((4, T, 4), torch.float32)}
    return Case("made", inputs, {}, out)


def honest(module, inputs, outputs, scalars):
    outputs["out"].copy_(inputs["pairs"].view(-1, 2, 4).sum(1) + inputs["table"][0])


def leaning(module, inputs, outputs, scalars):
    honest(module, inputs, outputs, scalars)
    outputs["out"] += 0.01 * inputs["pairs"].mean()


def test_a_part_has_the_rows_of_the_whole_and_all_of_the_rest():
    found = list(parts.parts(CONTRACT, case(), T))
    assert [(begin, end) for _, begin, end in found] == [(2, 6), (3, 4)]
    part = found[1][0]
    assert torch.equal(part.inputs["pairs"], case().inputs["pairs"][6:8])
    assert torch.equal(part.inputs["table"], case().inputs["table"])
    assert {name: shape for name, (shape, _) in part.out.items()} == {"out": (1, 4), "work": (4, 1, 4)}


@pytest.mark.parametrize(("native", "passed"), [(honest, True), (leaning, False)])
def test_conformance_compares_rows_in_smaller_calls(monkeypatch, native, passed):
    def reference(inputs, scalars):
        return {"out": inputs["pairs"].view(-1, 2, 4).sum(1) + inputs["table"][0]}

    contract = Contract(**{**CONTRACT.__dict__, "tolerance": 1.0})
    op = Op(contract, reference, lambda generator, device: iter([case()]), {"cpu": native})
    monkeypatch.setattr(conformance, "load_all", lambda: {"test.rows": op})
    found = {outcome.what: outcome for outcome in conformance.run(SimpleNamespace(), "cpu", "cpu", 1)}
    assert found["op"].passed
    assert found["batch"].passed is passed
    if not passed:
        assert found["batch"].detail == "out of rows 2 to 5 differs from that of 6 rows"


POOL = Contract(
    "test.pool",
    "rows into slots",
    (
        Argument("x", "[T, C]", ("float32",)),
        Argument("slots", "[T]", ("int64",)),
        Argument("before", "[S, C]", ("float32",)),
        Argument("cache", "[S, C]", ("float32",), "out"),
    ),
    {},
    "none",
    batch="T",
)


@pytest.mark.parametrize(("lean", "passed"), [(0.0, True), (1.0, False)])
def test_rows_that_are_written_into_a_pool_are_compared_at_their_slots(monkeypatch, lean, passed):
    def fill(module, inputs, outputs, scalars):
        outputs["cache"].copy_(inputs["before"])
        outputs["cache"][inputs["slots"]] = inputs["x"] + lean * len(inputs["x"])

    def reference(inputs, scalars):
        out = {"cache": torch.empty(9, 4)}
        fill(None, inputs, out, scalars)
        return out

    inputs = {"x": torch.randn(T, 4), "slots": torch.randperm(9)[:T], "before": torch.randn(9, 4)}
    made = Case("made", inputs, {}, {"cache": ((9, 4), torch.float32)})
    op = Op(POOL, reference, lambda generator, device: iter([made]), {"cpu": fill})
    monkeypatch.setattr(conformance, "load_all", lambda: {"test.pool": op})
    found = {outcome.what: outcome for outcome in conformance.run(SimpleNamespace(), "cpu", "cpu", 1)}
    assert found["batch"].passed is passed


def test_a_promise_that_nothing_is_compared_for_is_not_kept():
    made = Case("made", {"x": torch.zeros(T, 4)}, {}, {})
    assert parts.same(POOL, made, {}, {}, 0, 1, T) == "nothing"
