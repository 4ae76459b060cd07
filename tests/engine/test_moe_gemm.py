"""The grouped expert products: packing, references against the model's ops, refusals."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.ops import launch, moe, moe_gemm, quantizers
from deepinfer.engine.ops.dequant import fp4_reference
from deepinfer.engine.ops.registry import load_all


def dense(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp64 [E, N, K] of the release's format."""
    pairs = zip(weight, scale, strict=True)
    return torch.stack([fp4_reference({"weight": w, "scale": s}, {})["out"] for w, s in pairs])


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("spread", [0, 11, 12, 40])
@pytest.mark.parametrize(("rows", "columns"), [(64, 128), (128, 64), (192, 416)])
@pytest.mark.parametrize("gated", [True, False])
def test_packing_keeps_every_weight(rows: int, columns: int, gated: bool, spread: int) -> None:
    weight, scale = moe_gemm.random_weights(2, rows, columns, generator(spread), spread=spread)
    scale[0, 0, 0], scale[0, 0, 1] = scale.amax(), scale.amax() - spread
    packed = moe_gemm.pack(weight, scale, gated=gated)
    assert packed.folded is (spread <= moe_gemm.SPAN)
    for e in range(2):
        whole = moe_gemm.unpack(packed.weight[e], packed.row_factor[e], packed.folded, gated=gated)
        if gated:
            whole = torch.cat([half[: rows // 2] for half in whole.chunk(2)])
        assert torch.equal(whole[:rows, :columns], dense(weight, scale)[e])
        assert whole.count_nonzero() == whole[:rows, :columns].count_nonzero()  # padding is zero


def test_a_packed_weight_takes_as_many_bytes_as_the_release() -> None:
    weight, scale = moe_gemm.random_weights(1, 256, 512, generator())
    assert moe_gemm.pack(weight, scale, gated=True).weight.numel() == weight.numel() + scale.numel()


def test_a_code_lies_where_the_contract_says() -> None:
    weight = torch.zeros(1, 128, 64, dtype=torch.uint8)
    weight[0, 9, 41] = 0xB0  # row 9, column 83: -1.5, in the tile w 0, r 1, g 1; half 1, s 0, b 1, q 0, c 3
    packed = moe_gemm.pack(weight, torch.full((1, 128, 4), 127, dtype=torch.uint8), gated=False).weight
    words = packed[0, 0, 0, 0, : moe_gemm.CODE_BYTES].clone().view(torch.int32)
    at = 4 * (128 + 4 * 1 + 0) + 1
    assert words.nonzero().flatten().tolist() == [at]
    assert words[at].item() == 3 << 28 | 1 << 27
    assert packed[0, 0, 0, 0, moe_gemm.CODE_BYTES + 4 * 9 + 2].item() == 8 * 12


def test_zero_groups_do_not_widen_a_row() -> None:
    weight, scale = moe_gemm.random_weights(1, 64, 128, generator())
    weight[0, 5, :16] = 0x80
    scale[0, 5, 0] = 1
    assert moe_gemm.pack(weight, scale, gated=False).folded


def experts_of_the_model(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, counts: list[int], routing: torch.Tensor
):
    """The same layer by the model's own ops, in fp64 products: what the kernels' references have to give."""
    channels = w13.shape[1] // 2
    out = []
    start = 0
    for e, count in enumerate(counts):
        rows = x[start : start + count].double()
        gate, up = ((rows @ w13[e].T).to(torch.bfloat16).float().split(channels, 1)) if count else (rows, rows)
        if count:
            hidden = moe.swiglu(gate, up, routing[start : start + count], 10.0)
            out.append((quantizers.qdq_fp8_32(hidden).double() @ w2[e].T).to(torch.bfloat16))
        start += count
    return torch.cat(out)


def test_references_agree_with_the_model() -> None:
    counts, columns, channels = [3, 0, 6], 96, 64
    g = generator()
    w13, s13 = moe_gemm.random_weights(3, 2 * channels, columns, g)
    w2, s2 = moe_gemm.random_weights(3, columns, channels, g)
    x = torch.randn(9, columns, generator=g) * 3
    routing = torch.rand(9, generator=g)
    codes, scale = moe_gemm.quantize(x)
    offsets = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
    first, second = moe_gemm.pack(w13, s13, gated=True), moe_gemm.pack(w2, s2, gated=False)
    given = {"x": codes, "x_scale": scale, "offsets": offsets, "weight": first.weight, "row_factor": first.row_factor}
    hidden = moe_gemm.w13_reference(
        {**given, "routing": routing}, {"channels": channels, "folded": 1, "limit": 10.0, "tile": 0}
    )
    given |= {"x": hidden["h"], "x_scale": hidden["h_scale"], "weight": second.weight}
    given["row_factor"] = second.row_factor
    out = moe_gemm.w2_reference(given, {"features": columns, "folded": 1, "tile": 0})["out"].to(torch.bfloat16)
    assert torch.equal(
        out, experts_of_the_model(quantizers.qdq_fp8_32(x), dense(w13, s13), dense(w2, s2), counts, routing)
    )


def test_quantize_stores_what_the_model_quantizes() -> None:
    x = torch.randn(7, 96, generator=generator()) * torch.logspace(-7, 4, 7)[:, None]
    x[3, :32] = 0
    codes, scale = moe_gemm.quantize(x)
    assert torch.equal(moe_gemm._activations(codes, scale), quantizers.qdq_fp8_32(x).double())


def test_combine_adds_in_the_order_of_choice() -> None:
    parts = torch.tensor([[1.0], [2.0**25], [-(2.0**25)]]).repeat(1, 8).to(torch.bfloat16)
    shared = torch.full((3, 8), 0.5, dtype=torch.bfloat16)
    positions = torch.tensor([[1, 0, 2], [1, 2, 0], [-1, -1, 0]], dtype=torch.int32)
    out = moe_gemm.combine_reference({"parts": parts, "positions": positions, "shared": shared}, {})["out"]
    assert out[:, 0].tolist() == [0.5, 1.5, 1.5]  # the 1 is lost beside 2^25, and only there


@pytest.mark.parametrize("name", ["moe_gemm.w13", "moe_gemm.w2", "moe_gemm.combine"])
def test_every_case_keeps_the_contract(name: str) -> None:
    op = load_all()[name]
    for case in op.cases(generator(), "cpu"):
        outputs = {key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in case.out.items()}
        launch.check(op.contract, {**case.inputs, **outputs}, case.scalars)
        for key, value in op.reference(case.inputs, case.scalars).items():
            assert value.shape == outputs[key].shape
            assert bool(value.double().isfinite().all())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x_scale": torch.zeros(2, 3, dtype=torch.uint8)}, "x_scale"),
        ({"offsets": torch.zeros(4, dtype=torch.int64)}, "offsets is int64"),
        ({"weight": torch.zeros(2, 1, 2, 2, 4351, dtype=torch.uint8)}, "weight has shape"),
        ({"out": torch.zeros(2, 128)}, "out is float32"),
    ],
)
def test_refuses_what_the_contract_does_not_allow(change: dict[str, torch.Tensor], said: str) -> None:
    op = load_all()["moe_gemm.w2"]
    tensors = {
        "x": torch.zeros(2, 64, dtype=torch.uint8),
        "x_scale": torch.zeros(2, 2, dtype=torch.uint8),
        "offsets": torch.zeros(3, dtype=torch.int32),
        "weight": torch.zeros(2, 1, 2, 2, 4352, dtype=torch.uint8),
        "row_factor": torch.zeros(2, 2, 64),
        "out": torch.zeros(2, 128, dtype=torch.bfloat16),
    }
    scalars = {"features": 128, "folded": 1, "tile": 0}
    launch.check(op.contract, tensors, scalars)
    with pytest.raises(launch.ContractBroken, match=said):
        launch.check(op.contract, {**tensors, **change}, scalars)


@pytest.mark.parametrize(
    ("weight", "scale"),
    [((1, 64, 8), (1, 64, 1)), ((1, 33, 16), (1, 33, 1)), ((1, 64, 16), (1, 64, 2))],
)
def test_pack_refuses_other_shapes(weight: tuple[int, ...], scale: tuple[int, ...]) -> None:
    tensors = [torch.zeros(shape, dtype=torch.uint8) for shape in (weight, scale)]
    with pytest.raises(launch.ContractBroken):
        moe_gemm.pack(*tensors, gated=False)


def test_pack_refuses_a_nan_scale() -> None:
    weight, scale = moe_gemm.random_weights(1, 64, 64, generator())
    scale[0, 3, 1] = 255
    with pytest.raises(launch.ContractBroken, match="255"):
        moe_gemm.pack(weight, scale, gated=True)
