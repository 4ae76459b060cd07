"""Packed rows against the unpacked model ops, the order of sums against a loop, layouts against known bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import quantizers
from deepinfer.engine.ops.dequant import e2m1_values, e4m3_values
from deepinfer.engine.ops.launch import ContractBroken, check
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.precision import root
from deepinfer.engine.ops.quantize_rows import (
    fp4_16,
    fp4_32,
    fp8_32,
    ordered_norm,
    ordered_sum,
    random_rows,
    rotate_rounded,
)
from deepinfer.engine.ops.registry import load_all
from deepinfer.engine.ops.rope import frequencies, rotate

BF16 = torch.bfloat16


def draw(*shape: int) -> torch.Tensor:
    return random_rows(shape, torch.Generator().manual_seed(torch.initial_seed() % 2**31), "cpu")


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """fp64 [..., 2 * B]: the values of packed E2M1 codes."""
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return e2m1_values()[pairs.long()]


def powers(scales: torch.Tensor) -> torch.Tensor:
    return torch.pow(2.0, scales.double() - 127.0).repeat_interleave(32, -1)


def every_finite_bf16() -> torch.Tensor:
    """bf16 [rows, 32]: every finite number once as the largest of its block, with halves and thirds of it beside."""
    bits = torch.arange(0x7F80, dtype=torch.int32)
    top = bits.to(torch.int16).view(BF16).float()[:, None]
    beside = top * torch.linspace(-0.97, 0.97, 31)[None, :]
    return torch.cat([top, beside], dim=1).to(BF16)


@pytest.mark.parametrize("x", [draw(40, 256), every_finite_bf16()], ids=["drawn", "every-bf16"])
def test_packed_codes_are_the_model_s_quantizers_bit_for_bit(x: torch.Tensor) -> None:
    codes, scales = fp8_32(x)
    assert torch.equal((e4m3_values()[codes.long()] * powers(scales)).to(BF16), quantizers.qdq_fp8_32(x))
    codes, scales = fp4_32(x)
    assert torch.equal((nibbles(codes) * powers(scales)).to(BF16), quantizers.qdq_fp4_32(x))
    codes, scales = fp4_16(x)
    sixteenths = e4m3_values()[scales.long()].repeat_interleave(16, -1)
    assert torch.equal((nibbles(codes) * sixteenths).to(BF16), quantizers.qdq_fp4_16(x))


def test_codes_of_known_blocks() -> None:
    row = torch.zeros(1, 32)
    row[0, :4] = torch.tensor([450.0, 4.25, 3 * 2.0**-9, -0.0])
    codes, scales = fp8_32(row.to(BF16))
    assert scales.tolist() == [[128]]  # 450 / 448 needs a scale of 2
    assert codes[0, :5].tolist() == [0x76, 0x40, 0x02, 0x80, 0x00]  # 224, 2, halfway to the even code, both zeros
    row[0, :5] = torch.tensor([6.5, 5.0, 3.0, -0.375, 12.0])
    codes, scales = fp4_32(row.to(BF16))
    assert scales.tolist() == [[128]]
    assert codes[0, :3].tolist() == [0x45, 0x83, 0x07]  # 3.25 and 2.5, 1.5 and -0.1875, 6 and 0


def test_the_order_of_the_sum_is_that_of_the_loop() -> None:
    for channels in (32, 512, 1280, 2048, 5120):
        x = draw(2, channels).float() ** 2
        assert ordered_sum(x).tolist() == [loop_sum(row.tolist()) for row in x]


def loop_sum(numbers: list[float]) -> float:
    def add(a: float, b: float) -> float:
        return float(torch.tensor(a, dtype=torch.float32) + torch.tensor(b, dtype=torch.float32))

    lanes = 128
    held = [0.0] * lanes
    for start in range(0, len(numbers), 8):
        chunk = 0.0
        for number in numbers[start : start + 8]:
            chunk = add(chunk, number)
        lane = start // 8 % lanes
        held[lane] = add(held[lane], chunk)
    for distance in (16, 8, 4, 2, 1):
        held = [add(held[lane], held[lane ^ distance]) for lane in range(lanes)]
    return add(add(held[0], held[32]), add(held[64], held[96]))


def test_the_ordered_norm_is_the_norm_to_one_rounding() -> None:
    x, weight = draw(64, 1280), 1.0 + 0.1 * torch.randn(1280)
    ours, model = ordered_norm(x, weight.to(BF16), 1e-20), rms_norm(x, weight.to(BF16), 1e-20)
    assert (ours.view(torch.int16).int() - model.view(torch.int16).int()).abs().max() <= 1
    assert (ours != model).float().mean() < 1e-3


def test_the_root_is_the_ieee_one() -> None:
    x = torch.exp2(torch.rand(1 << 18) * 60.0 - 30.0)
    assert np.array_equal(root(x).numpy(), np.sqrt(x.numpy()))  # the processor's, which rounds to the nearest


def test_the_ordered_norm_is_made_of_ieee_operations() -> None:
    """What kernels give and every device must: with torch's root a CPU gives other bits in some rows of this many."""
    x, weight = draw(1025, 1952), (1.0 + 0.1 * torch.randn(1952)).to(BF16)
    values, width, eps = x.float().numpy(), np.float32(1952.0), np.float32(1e-20)
    total = ordered_sum(x.float().square()).numpy()
    inverse = np.float32(1.0) / np.sqrt(total / width + eps)
    wanted = torch.from_numpy(weight.float().numpy() * values * inverse[:, None]).to(BF16)
    assert torch.equal(ordered_norm(x, weight, 1e-20).view(torch.int16), wanted.view(torch.int16))


def test_rotation_is_exact_at_far_positions() -> None:
    freqs = frequencies(64, 10000.0)
    position = (1 << 20) - 1
    x = torch.zeros(1, 1, 128, dtype=BF16)
    x[0, 0, 64::2] = 1.0
    turned = rotate_rounded(x, torch.tensor([position]), freqs)[0, 0, 64:].float()
    for i in (0, 1, 7, 31):
        angle = float(torch.tensor(float(position)) * freqs[i])
        assert turned[2 * i] == torch.tensor(math.cos(angle)).to(BF16).float()
        assert turned[2 * i + 1] == torch.tensor(math.sin(angle)).to(BF16).float()
    drawn, positions = draw(9, 3, 128), torch.randint(0, 1 << 20, (9,))
    difference = (rotate_rounded(drawn, positions, freqs) != rotate(drawn, positions, freqs)).float().mean()
    assert difference < 1e-3


def test_a_window_record_is_codes_then_scales_at_its_slot() -> None:
    op = load_all()["rows.window"]
    case = next(iter(op.cases(torch.Generator().manual_seed(5), "cpu")))
    inputs = {**case.inputs, "slots": torch.tensor([3, -1, 60] + [4 + i for i in range(30)])}
    cache = op.reference(inputs, case.scalars)["cache"]
    untouched = [0, 1, 2, *range(34, 60)]
    assert torch.equal(cache[untouched], inputs["before"][untouched])
    keys = rotate_rounded(ordered_norm(inputs["x"], inputs["weight"], 1e-20), inputs["positions"], inputs["freqs"])
    wanted = quantizers.qdq_fp8_32(keys[:1])
    found = e4m3_values()[cache[3, :512].long()] * powers(cache[3, 512:])
    assert torch.equal(found.to(BF16), wanted[0])


@pytest.mark.parametrize(
    "name", ["quantize_rows.fp8", "quantize_rows.normed_fp8", "rows.queries", "rows.index_queries", "rows.window"]
)
def test_a_row_of_the_reference_does_not_depend_on_the_others(name: str) -> None:
    op = load_all()[name]
    for case in op.cases(torch.Generator().manual_seed(11), "cpu"):
        rows = case.inputs["x"].shape[0]
        whole = op.reference(case.inputs, case.scalars)
        per_row = {key for key in ("x", "positions", "slots") if key in case.inputs}
        last = {key: value[rows - 1 :] if key in per_row else value for key, value in case.inputs.items()}
        for key, alone in op.reference(last, case.scalars).items():
            if key == "cache":
                slot = int(case.inputs["slots"][-1])
                if 0 <= slot < alone.shape[0]:
                    assert torch.equal(alone[slot], whole[key][slot])
            else:
                assert torch.equal(alone[0], whole[key][-1])


def test_the_contract_refuses_wrong_shapes_and_types() -> None:
    op = load_all()["quantize_rows.fp8"]
    case = next(iter(op.cases(torch.Generator().manual_seed(1), "cpu")))
    outputs = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in case.out.items()}
    check(op.contract, {**case.inputs, **outputs}, {})
    for name, wrong in (
        ("x", case.inputs["x"].float()),
        ("x", case.inputs["x"][:, :31]),
        ("scales", torch.empty(1, 2, dtype=torch.uint8)),
        ("codes", torch.empty(1, 32, dtype=torch.int8)),
    ):
        with pytest.raises(ContractBroken, match=name):
            check(op.contract, {**case.inputs, **outputs, name: wrong}, {})
    with pytest.raises(ContractBroken, match="shares memory"):
        queries = load_all()["rows.queries"]
        case = next(iter(queries.cases(torch.Generator().manual_seed(1), "cpu")))
        check(queries.contract, {**case.inputs, "out": case.inputs["x"]}, {})
