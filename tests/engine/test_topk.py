"""Packed selection: its references against the masks of the model, by hand where two answers are as good."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import launch, selection, topk
from deepinfer.engine.ops.registry import load_all

NAN, INF = float("nan"), float("inf")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(time.time_ns() % 2**31)


def select(scores: torch.Tensor, visible: list[int], k: int, **more: torch.Tensor) -> tuple[list, list]:
    found = topk.select({"scores": scores, "visible": torch.tensor(visible, dtype=torch.int32), **more}, {"k": k})
    return found["indices"].tolist(), found["count"].tolist()


def positions(indices: torch.Tensor, columns: int) -> torch.Tensor:
    """bool [T, columns] from packed indices."""
    mask = torch.zeros(indices.shape[0], columns + 1, dtype=torch.bool)
    mask.scatter_(1, indices.long().where(indices >= 0, torch.tensor(columns)), True)
    return mask[:, :columns]


def test_of_equal_scores_the_lower_index_wins_and_zeros_are_equal():
    scores = torch.tensor([[1.0, 0.0, -0.0, 0.0, 2.0, -0.0, 0.0, -1.0]])
    assert select(scores, [8], 4) == ([[0, 1, 2, 4]], [4])
    assert select(-scores, [8], 4) == ([[1, 2, 3, 7]], [4])


def test_what_is_not_visible_does_not_count_and_the_rest_is_minus_one():
    scores = torch.tensor([[-INF, 1.0, INF, INF], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    assert select(scores, [2, 4, 0], 3) == ([[0, 1, -1], [1, 2, 3], [-1, -1, -1]], [2, 3, 0])
    assert select(scores, [-5, 9, 1], 5)[1] == [0, 4, 1]


def test_nan_is_the_lowest_score_like_minus_infinity():
    scores = torch.tensor([[NAN, -INF, 5.0, NAN, -1e38, NAN, -INF, 4.0]])
    assert select(scores, [8], 3) == ([[2, 4, 7]], [3])
    assert select(scores, [8], 5) == ([[0, 1, 2, 4, 7]], [5])


@pytest.mark.parametrize("kind", [kind for kind in topk.KINDS if kind != "special"])
def test_packed_and_masked_selection_agree(kind: str):
    source = generator()
    scores = topk.draw(kind, 6, 200, source)
    visible = torch.randint(0, 201, (6,), generator=source)
    found = topk.select({"scores": scores, "visible": visible.int()}, {"k": 30})
    wanted = selection.top_k(scores, selection.below(visible, 200), 30)
    assert torch.equal(positions(found["indices"], 200), wanted)
    assert torch.equal(found["count"], wanted.sum(1).int())
    for row, count in zip(found["indices"].tolist(), found["count"].tolist(), strict=True):
        assert row == sorted(row[:count]) + [-1] * (30 - count)


@pytest.mark.parametrize("kind", ["normal", "ties", "one value", "falling"])
def test_packed_and_masked_blocks_agree(kind: str):
    source = generator()
    scores = topk.draw(kind, 8, 240, source)
    visible = torch.randint(0, 241, (8,), generator=source)
    found = topk.candidate_blocks({"scores": scores, "visible": visible.int()}, {"most": 7})
    wanted = selection.candidate_blocks(scores, visible, 8, 7)
    blocks = positions(found["blocks"], 30).repeat_interleave(8, 1) & selection.below(visible, 240)
    assert torch.equal(blocks, wanted)
    assert torch.equal(found["entries"], wanted.sum(1).int())
    newest = (visible - 1) // 8
    last = found["blocks"].gather(1, (found["count"].long() - 1).clamp_min(0)[:, None])[:, 0]
    assert torch.equal(last[visible > 0], newest[visible > 0].int())


def test_two_levels_give_what_one_level_gives_over_the_candidates():
    source = generator()
    dense, later = topk.draw("ties", 5, 400, source), topk.draw("ties", 5, 400, source)
    visible = torch.tensor([400, 397, 100, 9, 0], dtype=torch.int32)
    kept = topk.candidate_blocks({"scores": dense, "visible": visible}, {"most": 12})
    places = (kept["blocks"].clamp_min(0) * 8)[:, :, None] + torch.arange(8)
    compact = later.gather(1, places.flatten(1).long())
    inputs = {"scores": compact, "visible": kept["entries"], "blocks": kept["blocks"]}
    found = topk.select(inputs, {"k": 20})
    candidates = selection.candidate_blocks(dense, visible.long(), 8, 12)
    assert torch.equal(positions(found["indices"], 400), selection.top_k(later, candidates, 20))


def test_cases_cover_every_plan_of_the_launcher():
    cases = list(load_all()["topk.select"].cases(generator(), "cpu"))
    plans = {int(case.scalars["plan"]) for case in cases}
    assert {plan // 100 for plan in plans} == {0, 1, 2, 3, 4}
    assert {plan % 100 for plan in plans} >= {0, 1, 2, 4, 8}
    hidden = cases[0].inputs["scores"][1]  # nothing of row 1 is visible
    assert int(cases[0].inputs["visible"][1]) == 0 and bool((hidden == INF).all())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("scores", torch.zeros(3, 16, dtype=torch.float64)),
        ("scores", torch.zeros(16, 3).t()),
        ("visible", torch.zeros(3, dtype=torch.int64)),
        ("visible", torch.zeros(2, dtype=torch.int32)),
        ("blocks", torch.zeros(3, 3, dtype=torch.int32)),
        ("indices", torch.zeros(3, 5, dtype=torch.int32)),
        ("count", torch.zeros(3)),
    ],
)
def test_what_the_contract_does_not_allow_is_refused_before_a_launch(name: str, wrong: torch.Tensor):
    right = {
        "scores": torch.zeros(3, 16),
        "visible": torch.zeros(3, dtype=torch.int32),
        "blocks": torch.zeros(3, 2, dtype=torch.int32),
        "indices": torch.zeros(3, 4, dtype=torch.int32),
        "count": torch.zeros(3, dtype=torch.int32),
    }
    contract = load_all()["topk.select"].contract
    launch.check(contract, right, {"k": 4, "plan": 0})
    with pytest.raises(launch.ContractBroken):
        launch.check(contract, {**right, name: wrong}, {"k": 4, "plan": 0})
