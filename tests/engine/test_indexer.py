"""The packed indexer: formats, the reference against the unpacked model op, its exact order of sums, refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import indexer, selection
from deepinfer.engine.ops.conformance import poisoned
from deepinfer.engine.ops.launch import ContractBroken, LaunchFailed, check
from deepinfer.engine.ops.quantizers import qdq_fp4_32
from deepinfer.engine.ops.registry import load_all


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    whole, power = indexer.unpack(codes, scales)
    return (whole * power[..., None]).flatten(-2)


def inputs(**changed: Any) -> dict[str, Any]:
    drawn = indexer.draw([70, 33], [2, 1], 64, generator(), "cpu")
    return {**drawn, **changed}


def outputs(columns: int = 70) -> dict[str, Any]:
    return {"out": torch.zeros(3, columns)}


SCALARS = {"page_entries": 64, "positions": 70, "rows_together": 1}


def test_packing_is_the_quantizer_of_the_model() -> None:
    sizes = torch.exp2(torch.randint(-40, 40, (200, 1), generator=generator()).float())
    x = (torch.randn(200, 128, generator=generator()) * sizes).bfloat16()
    x[3] = 0.0
    codes, scales = indexer.pack(x)
    assert codes.shape == (200, 64) and scales.shape == (200, 4)
    assert torch.equal(values(codes, scales).float(), qdq_fp4_32(x).float())
    codes, scales = indexer.pack(torch.tensor([6.5, 5.0, 3.0, 0.375, *[0.0] * 124])[None])
    assert values(codes, scales)[0, :5].tolist() == [6.0, 4.0, 3.0, 0.0, 0.0]
    assert scales[0].tolist() == [128, 1, 1, 1]  # 2^ceil(log2(6.5 / 6)); the floor is 2^-126
    assert codes[0, 0] == 5 | 4 << 4  # 6.5 and 5 are 3 and 2 in units of 2; the even channel is low


def test_a_page_holds_all_codes_then_all_scales() -> None:
    codes = torch.arange(32 * 64).remainder(251).to(torch.uint8).view(32, 64)
    scales = torch.arange(32 * 4).to(torch.uint8).view(32, 4)
    pages = indexer.to_pages(codes, scales, 16, 16 * 68 + 16)
    assert pages.shape == (2, 16 * 68 + 16)
    assert torch.equal(pages[1, 3 * 64 : 4 * 64], codes[19])
    assert torch.equal(pages[1, 16 * 64 + 3 * 4 : 16 * 64 + 4 * 4], scales[19])


def test_dense_scores_are_those_of_the_model() -> None:
    given = inputs()
    out = indexer.dense_reference(given, SCALARS)["out"]
    query = values(given["query"], given["query_scale"])
    for row, sequence in enumerate((0, 0, 1)):
        seen = int(given["visible"][row])
        entries = torch.arange(seen)
        page = given["pages"][given["block_table"][sequence][entries // 64].long()]
        codes = torch.stack([page[j, j % 64 * 64 : j % 64 * 64 + 64] for j in range(seen)])
        scales = torch.stack([page[j, 4096 + j % 64 * 4 : 4096 + j % 64 * 4 + 4] for j in range(seen)])
        wanted = selection.scores(query[row : row + 1], values(codes, scales), given["weights"][row : row + 1].double())
        torch.testing.assert_close(out[row, :seen].double(), wanted[0], rtol=2e-5, atol=2e-5)
        assert bool((out[row, seen:] == float("-inf")).all())
    assert given["visible"].tolist() == [69, 70, 33]


def test_candidates_are_the_dense_scores_of_their_blocks() -> None:
    given = inputs()
    dense = indexer.dense_reference(given, SCALARS)["out"]
    blocks = torch.tensor([[3, 0, -1, 8], [8, 8, 1, 2], [4, 5, -1, 0]], dtype=torch.int32)
    out = indexer.candidates_reference({**given, "candidates": blocks}, {"page_entries": 64})["out"]
    padded = torch.nn.functional.pad(dense, (0, 26), value=float("-inf")).unflatten(1, (12, 8))
    for row in range(3):
        for place, block in enumerate(blocks[row].tolist()):
            wanted = padded[row, block] if block >= 0 else torch.full((8,), float("-inf"))
            assert torch.equal(out[row, 8 * place : 8 * place + 8], wanted)


def test_a_row_does_not_depend_on_the_others() -> None:
    given = inputs()
    whole = indexer.dense_reference(given, SCALARS)["out"]
    names = ("query", "query_scale", "weights", "sequence", "visible")
    alone = {**given, **{name: given[name][1:2] for name in names}}
    assert torch.equal(indexer.dense_reference(alone, SCALARS)["out"], whole[1:2])


def test_zero_scores_are_positive_and_padding_sees_nothing() -> None:
    given = inputs(weights=-torch.ones(3, 32))
    given["query"] = torch.full_like(given["query"], 0x88)  # every code is -0
    given["sequence"][2] = -1
    out = indexer.dense_reference(given, SCALARS)["out"]
    assert bool((out[0, :69].view(torch.int32) == 0).all())
    assert bool((out[2] == float("-inf")).all())


def test_a_tiny_group_of_a_query_head_counts_as_zeros() -> None:
    given = inputs()
    given["query_scale"][:] = torch.tensor([130, 104, 103, 130], dtype=torch.uint8)
    dropped = {**given, "query": given["query"].clone()}
    dropped["query"][..., 32:48] = 0  # the group that is 27 below the largest
    first, second = (indexer.dense_reference(one, SCALARS)["out"] for one in (given, dropped))
    assert torch.equal(first, second)
    kept = {**given, "query": given["query"].clone()}
    kept["query"][..., :16] = 0
    kept["query"][..., 32:] = 0
    only = indexer.dense_reference(kept, SCALARS)["out"][0, :69]
    assert bool((only != 0.0).any())  # the group that is 26 below still counts


def test_the_fused_multiply_add_rounds_once() -> None:
    count = 4000
    a = torch.randn(count, generator=generator(1))
    b = torch.randn(count, generator=generator(2)) * 2.0**-6
    c = torch.randn(count, generator=generator(4)) * torch.exp2(torch.arange(count) % 80 - 40.0)
    c[::7] = -(a * b)[::7]  # cancellation
    # halfway between two fp32 numbers but for a part that fp64 loses
    a[0], b[0], c[0] = 1.0 + 2.0**-23, 2.0**-60, 1.0 + 2.0**-23
    a[1], b[1], c[1] = 2.0**-12, 2.0**-12, 1.0
    found = indexer.fused_multiply_add(a, b, c)
    for i in range(count):
        exact = Fraction(a[i].item()) * Fraction(b[i].item()) + Fraction(c[i].item())
        got = found[i : i + 1]
        below, above = (torch.nextafter(got, torch.tensor(end)).item() for end in (float("-inf"), float("inf")))
        error = abs(Fraction(got.item()) - exact)
        assert error <= abs(Fraction(below) - exact) and error <= abs(Fraction(above) - exact)


@pytest.mark.parametrize("name", ["indexer.dense", "indexer.candidates"])
def test_every_case_keeps_the_contract_and_fills_the_output(name: str) -> None:
    op = load_all()[name]
    for case in op.cases(generator(9), "cpu"):
        out = {key: poisoned(shape, dtype, "cpu") for key, (shape, dtype) in case.out.items()}
        check(op.contract, {**case.inputs, **out}, case.scalars)
        found = op.reference(case.inputs, case.scalars)["out"]
        assert found.shape == out["out"].shape and found.dtype == torch.float32
        assert not bool(found.isnan().any())
        assert bool(found.isfinite().any())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"query": torch.zeros(3, 32, 63, dtype=torch.uint8)}, "query has shape"),
        ({"query": torch.zeros(3, 32, 64)}, "query is float32"),
        ({"query_scale": torch.zeros(3, 32, 3, dtype=torch.uint8)}, "query_scale has shape"),
        ({"weights": torch.zeros(3, 32, dtype=torch.float16)}, "weights is float16"),
        ({"weights": torch.zeros(2, 32)}, "weights has shape"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int64)}, "block_table is int64"),
        ({"sequence": torch.zeros(4, dtype=torch.int32)}, "sequence has shape"),
        ({"visible": torch.zeros(3, 1, dtype=torch.int32)}, "visible has shape"),
    ],
)
def test_wrong_inputs_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractBroken) as found:
        check(load_all()["indexer.dense"].contract, {**inputs(**changed), **outputs()}, SCALARS)
    assert said in str(found.value)


def test_a_wrong_output_and_missing_candidates_are_refused() -> None:
    with pytest.raises(ContractBroken, match="out has shape"):
        check(load_all()["indexer.dense"].contract, {**inputs(), **outputs(71)}, SCALARS)
    contract = load_all()["indexer.candidates"].contract
    with pytest.raises(ContractBroken, match="candidates is missing"):
        check(contract, {**inputs(), **outputs()}, SCALARS)
    blocks = torch.zeros(3, 9, dtype=torch.int32)
    with pytest.raises(ContractBroken, match="out has shape"):
        check(contract, {**inputs(candidates=blocks), **outputs()}, SCALARS)


class Recorder:
    """Stands for a library of kernels: remembers the call and answers with a code."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.name, self.words = code, "", ()

    def kernel(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.name, self.words = name, words
            return self.code

        return call

    def error_name(self, code: int) -> str:
        return f"error {code}"


def test_arguments_reach_the_c_abi_in_its_order() -> None:
    given, out = inputs(), outputs()
    module = Recorder()
    load_all()["indexer.dense"].native["cuda"](module, given, out, {**SCALARS, "rows_together": 2})
    assert module.name == "indexer_dense"
    pointers = [word.value for word in module.words[:8]]
    names = ("query", "query_scale", "weights", "pages", "block_table", "sequence", "visible")
    assert pointers == [*(given[name].data_ptr() for name in names), out["out"].data_ptr()]
    assert [word.value for word in module.words[8:-1]] == [3, 2, 2, given["pages"].shape[1], 64, 70, 0, 2]
    blocks = torch.zeros(3, 9, dtype=torch.int32)
    few = {**given, "candidates": blocks, "weights": given["weights"].bfloat16()}
    load_all()["indexer.candidates"].native["cuda"](module, few, {"out": torch.zeros(3, 72)}, {"page_entries": 64})
    assert module.name == "indexer_candidates" and module.words[7].value == blocks.data_ptr()
    assert [word.value for word in module.words[9:-1]] == [3, 2, 2, given["pages"].shape[1], 64, 9, 1]
    with pytest.raises(LaunchFailed, match="indexer_dense was not launched: error 1"):
        load_all()["indexer.dense"].native["cuda"](Recorder(1), given, out, SCALARS)
