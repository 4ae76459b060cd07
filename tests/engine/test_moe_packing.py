"""The order of packed expert weights: every weight kept, where codes lie, refusals."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.ops import launch, moe_gemm, moe_packing
from deepinfer.engine.ops.dequant import fp4_reference


def dense(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp64 [E, N, K] of the release's format."""
    pairs = zip(weight, scale, strict=True)
    return torch.stack([fp4_reference({"weight": w, "scale": s}, {})["out"] for w, s in pairs])


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("spread", [0, 11, 40, moe_packing.SPAN])
@pytest.mark.parametrize(("rows", "columns"), [(64, 128), (128, 64), (192, 416)])
@pytest.mark.parametrize("gated", [True, False])
def test_packing_keeps_every_weight(rows: int, columns: int, gated: bool, spread: int) -> None:
    weight, scale = moe_gemm.random_weights(2, rows, columns, generator(spread), spread=spread)
    scale[0, 0, 0], scale[0, 0, 1] = scale.amax(), scale.amax() - spread
    packed = moe_packing.pack(weight, scale, gated=gated)
    for e in range(2):
        whole = moe_packing.unpack(packed.weight[e], packed.row_factor[e], gated=gated)
        if gated:
            whole = torch.cat([half[: rows // 2] for half in whole.chunk(2)])
        assert torch.equal(whole[:rows, :columns], dense(weight, scale)[e])
        assert whole.count_nonzero() == whole[:rows, :columns].count_nonzero()  # padding is zero


def test_a_packed_weight_takes_as_many_bytes_as_the_release() -> None:
    weight, scale = moe_gemm.random_weights(1, 256, 512, generator())
    assert moe_packing.pack(weight, scale, gated=True).weight.numel() == weight.numel() + scale.numel()


@pytest.mark.parametrize(
    ("column", "quad", "bits"),
    [
        (64 + 1, 0, (31, 24, 22)),  # first pair, odd: where bf16 has sign, high exponent bit, mantissa
        (64 + 8, 0, (18, 11, 9)),  # second pair, even: 3 bits further left
        (64 + 16 + 7, 3, (5, 30, 28)),  # third pair, odd: 6 bits, the sign comes round
        (64 + 24 + 2, 1, (3, 1, 4)),  # fourth pair, even
    ],
)
def test_a_code_lies_where_the_contract_says(column: int, quad: int, bits: tuple[int, ...]) -> None:
    weight = torch.zeros(1, 128, 64, dtype=torch.uint8)
    weight[0, 9, column // 2] = 0xD << 4 * (column % 2)  # row 9 is r 1, g 1 of warp 0; -3: sign, exponent 2, mantissa
    scale = torch.full((1, 128, 4), 125, dtype=torch.uint8)
    scale[0, 9, 3] = 127  # of zeros: does not count
    packed = moe_packing.pack(weight, scale, gated=False)
    block = packed.weight[0, 0, 0, 0]
    words = block[: moe_packing.CODE_BYTES].clone().view(torch.int32)
    at = 4 * (128 + 4 * 1 + quad) + 1  # half 1, thread, word 2 s + r
    assert words.nonzero().flatten().tolist() == [at]
    assert words[at].item() & 0xFFFFFFFF == sum(1 << bit for bit in bits)
    scales = block[moe_packing.CODE_BYTES :].clone().view(torch.int32).view(4, 8, 2)
    word = scales[0, 1, 1].item() & 0xFFFFFFFF  # groups 0 and 2 where bf16 has its exponent
    assert word >> 23 & 0xFF == moe_packing.TOP and word >> 7 & 0xFF == moe_packing.TOP
    assert packed.row_factor[0, 0, 9].item() == 2.0 ** (125 - 127 + 13)


def test_the_kernels_arithmetic_gives_the_weights() -> None:
    """The instructions of fragment.cuh in integers, on every code, place and some scales."""
    weight, scale = moe_gemm.random_weights(1, 64, 128, generator(5), spread=3)
    packed = moe_packing.pack(weight, scale, gated=False)
    block = packed.weight[0, 0, 0, 0]
    words = block[: moe_packing.CODE_BYTES].clone().view(torch.int32).long().view(2, 4, 8, 4, 2, 2) & 0xFFFFFFFF
    mask, low32 = 0x81C081C0, 0xFFFFFFFF
    pairs = torch.stack(
        [words & mask]
        + [((words >> n) | (words << (32 - n)) & low32) & mask for n in (3, 6)]
        + [((words & 0x001B001B) * (4 + 128 + 4096) & low32) & mask]
    )
    halves = torch.stack([pairs & 0xFFFF, pairs >> 16], dim=-1).to(torch.int32).to(torch.uint16).view(torch.bfloat16)
    # [p, half, w, g, q, s, r, h] -> [w, r, g, half, s, p, q, h]: rows, then columns
    codes = halves.double().permute(2, 6, 3, 1, 5, 0, 4, 7).reshape(64, 128)
    word = block[moe_packing.CODE_BYTES :].clone().view(torch.int32).long().view(4, 8, 2) & 0xFFFFFFFF
    powers = [half & 0x7F807F80 for half in (word, (word >> 8) | (word << 24) & low32)]
    scales = torch.stack([power >> shift & 0xFFFF for shift in (0, 16) for power in powers], dim=-1)
    scales = scales.to(torch.int32).to(torch.uint16).view(torch.bfloat16).double().transpose(1, 2).reshape(64, 4)
    found = codes * scales.repeat_interleave(32, 1) * packed.row_factor[0, 0].double()[:, None]
    assert torch.equal(found, dense(weight, scale)[0])


def test_zero_groups_do_not_widen_a_row() -> None:
    weight, scale = moe_gemm.random_weights(1, 64, 128, generator())
    weight[0, 5, :16] = 0x80
    scale[0, 5, 0] = 1
    packed = moe_packing.pack(weight, scale, gated=False)
    whole = moe_packing.unpack(packed.weight[0], packed.row_factor[0], gated=False)
    assert torch.equal(whole[:64, :128], dense(weight, scale)[0])


@pytest.mark.parametrize(("top", "low"), [(241, 241), (127, 127 - moe_packing.SPAN - 1)])
def test_pack_refuses_scales_that_the_kernel_could_not_hold(top: int, low: int) -> None:
    weight, scale = torch.full((1, 64, 32), 0x22, dtype=torch.uint8), torch.full((1, 64, 2), 127, dtype=torch.uint8)
    scale[0, 3] = torch.tensor([top, low], dtype=torch.uint8)
    with pytest.raises(launch.ContractBroken, match="scales of a row") as refused:
        moe_packing.pack(weight, scale, gated=False)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("weight", "scale"),
    [((1, 64, 8), (1, 64, 1)), ((1, 33, 16), (1, 33, 1)), ((1, 64, 16), (1, 64, 2))],
)
def test_pack_refuses_other_shapes(weight: tuple[int, ...], scale: tuple[int, ...]) -> None:
    tensors = [torch.zeros(shape, dtype=torch.uint8) for shape in (weight, scale)]
    with pytest.raises(launch.ContractBroken):
        moe_packing.pack(*tensors, gated=False)


def test_pack_refuses_a_nan_scale() -> None:
    weight, scale = moe_gemm.random_weights(1, 64, 64, generator())
    scale[0, 3, 1] = 255
    with pytest.raises(launch.ContractBroken, match="255"):
        moe_packing.pack(weight, scale, gated=True)
