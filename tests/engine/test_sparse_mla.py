"""Sparse attention over packed rows: its reference against the model's own ops, the row formats, and refusals."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import sparse_mla
from deepinfer.engine.ops.attention import attend
from deepinfer.engine.ops.launch import ContractBroken, check
from deepinfer.engine.ops.quantizers import qdq_fp4_16, qdq_fp8_32
from deepinfer.engine.ops.registry import load_all
from deepinfer.engine.ops.rope import frequencies, rotate

SLOTS = (20, 40)


def drawn(tokens: int = 4, **options: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    return sparse_mla.draw_inputs(tokens, SLOTS, generator, "cpu", **options)


def result(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return sparse_mla.reference(inputs, {})["out"]


def test_packed_rows_hold_what_the_model_quantizes_to() -> None:
    x = (torch.randn(50, 512) * torch.exp2(torch.randint(-20, 12, (50, 1)).float())).bfloat16()
    assert torch.equal(sparse_mla.window_values(sparse_mla.pack_window(x)), qdq_fp8_32(x).double())
    assert torch.equal(sparse_mla.entry_values(sparse_mla.pack_entries(x)), qdq_fp4_16(x).double())


def test_the_even_channel_is_the_low_nibble_and_scales_follow_the_codes() -> None:
    entry = torch.zeros(1, 288, dtype=torch.uint8)
    entry[0, 8], entry[0, 256 + 1] = 0xA7, 0x40  # channels 16 and 17 in group 1: codes 7 and 10 of scale 2
    values = sparse_mla.entry_values(entry)[0]
    assert values[16:18].tolist() == [12.0, -2.0]
    assert int((values != 0).sum()) == 2
    window = torch.zeros(1, 528, dtype=torch.uint8)
    window[0, 33], window[0, 512 + 1] = 0xB8, 130  # channel 33: -1, its group's scale 8
    values = sparse_mla.window_values(window)[0]
    assert values[33] == -8.0
    assert int((values != 0).sum()) == 1


def test_the_result_is_the_models_attention_then_its_inverse_rotation() -> None:
    inputs = drawn(6, holes=0.2)
    tokens, positions, freqs = 6, torch.randint(0, 1 << 20, (6,)), frequencies(64, 10000.0)
    inputs["rotation"] = sparse_mla.rotation_table(positions, freqs)
    got = result(inputs)
    window = sparse_mla.window_values(inputs["window"])
    entries = sparse_mla.entry_values(inputs["entries"])
    for t in range(tokens):
        rows = [
            [int(row) for row in lists[t, : int(count)] if 0 <= int(row) < 300]
            for lists, count in zip((inputs["window_rows"], inputs["entry_rows"]), inputs["counts"][t], strict=True)
        ]
        keys = [window[rows[0]], entries[rows[1]]]
        masks = [torch.ones(1, len(key), dtype=torch.bool) for key in keys]
        query, sink = inputs["query"][t : t + 1].double(), inputs["sink"].double()
        attended = attend(query, keys[0], masks[0], keys[1], masks[1], sink)
        wanted = rotate(attended, positions[t : t + 1], freqs, inverse=True)
        torch.testing.assert_close(got[t : t + 1], wanted, rtol=0, atol=1e-6)


def test_a_row_that_is_listed_twice_counts_twice() -> None:
    inputs = drawn(1)
    inputs["counts"] = torch.tensor([[2, 1]], dtype=torch.int32)
    inputs["window_rows"][0, :2] = torch.tensor([5, 5], dtype=torch.int32)
    inputs["entry_rows"][0, 0] = 9
    inputs["rotation"] = sparse_mla.rotation_table(torch.zeros(1), frequencies(64, 10000.0))
    keys = torch.cat(
        [sparse_mla.window_values(inputs["window"][5:6]), sparse_mla.entry_values(inputs["entries"][9:10])]
    )
    weight = torch.exp(inputs["query"][0].double() @ keys.T * 512**-0.5) * torch.tensor([2.0, 1.0])
    total = weight.sum(1, keepdim=True) + inputs["sink"].double().exp()[:, None]
    torch.testing.assert_close(result(inputs)[0], weight @ keys / total)


def test_slots_past_the_count_and_rows_outside_the_pool_are_not_seen() -> None:
    inputs = drawn(3)
    inputs["counts"] = torch.tensor([[7, 11], [0, 0], [20, 40]], dtype=torch.int32)
    inputs["window_rows"][2], inputs["entry_rows"][2] = -1, 300
    wanted = result(inputs)
    assert not wanted[1:].any()
    inputs["window_rows"][0, 7:], inputs["entry_rows"][0, 11:] = 299, 1
    assert torch.equal(result(inputs), wanted)


def test_a_layer_without_entries_has_an_empty_pool() -> None:
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    inputs = sparse_mla.draw_inputs(2, (128, 0), generator, "cpu")
    assert inputs["entries"].shape == (0, 288)
    assert inputs["entry_rows"].shape == (2, 0)
    assert bool(result(inputs).any())


def test_the_cases_meet_the_contract_and_the_reference_is_finite() -> None:
    for name in ("attention.sparse", "attention.sparse_portable"):
        op = load_all()[name]
        for case in op.cases(torch.Generator().manual_seed(time.time_ns() % 2**31), "cpu"):
            out = torch.empty(case.out["out"][0], dtype=torch.bfloat16)
            check(op.contract, {**case.inputs, "out": out}, case.scalars)
            if name == "attention.sparse":
                assert bool(op.reference(case.inputs, case.scalars)["out"].isfinite().all())


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("window", (300, 584), torch.uint8),
        ("entries", (300, 256), torch.uint8),
        ("query", (4, 128, 512), torch.bfloat16),
        ("query", (4, 64, 512), torch.float32),
        ("window_rows", (3, 20), torch.int32),
        ("entry_rows", (4, 40), torch.int64),
        ("counts", (4, 1), torch.int32),
        ("rotation", (4, 32), torch.float32),
        ("sink", (64,), torch.bfloat16),
    ],
)
def test_other_shapes_and_types_are_refused(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = {**drawn(4), "out": torch.empty(4, 64, 512, dtype=torch.bfloat16)}
    inputs[name] = torch.zeros(shape, dtype=dtype)
    with pytest.raises(ContractBroken, match=name):
        check(load_all()["attention.sparse"].contract, inputs, {})


class Recorder:
    """Stands for the library: remembers what a kernel was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def kernel(self, name: str) -> Any:
        return lambda *words: self.calls.append((name, [word.value for word in words])) or 0


def test_arguments_go_to_the_kernel_in_the_headers_order() -> None:
    inputs, recorder = drawn(4), Recorder()
    out = torch.empty(4, 64, 512, dtype=torch.bfloat16)
    load_all()["attention.sparse"].native["cuda"](recorder, inputs, {"out": out}, {})
    load_all()["attention.sparse_portable"].native["cuda"](recorder, inputs, {"out": out}, {})
    names = ("query", "window", "window_rows", "entries", "entry_rows", "counts", "sink", "rotation")
    wanted = [inputs[name].data_ptr() for name in names] + [out.data_ptr(), 4, 300, 20, 300, 40, None]
    assert [name for name, _ in recorder.calls] == ["sparse_mla", "sparse_mla_portable"]
    assert all(words == wanted for _, words in recorder.calls)
    assert ctypes.c_void_p(0).value is None  # the default stream
