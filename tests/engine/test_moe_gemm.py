"""The grouped expert products: references against the model's ops, refusals."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.ops import launch, moe, moe_gemm, moe_packing, quantizers
from deepinfer.engine.ops.dequant import fp4_reference
from deepinfer.engine.ops.registry import load_all


def dense(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp64 [E, N, K] of the release's format."""
    pairs = zip(weight, scale, strict=True)
    return torch.stack([fp4_reference({"weight": w, "scale": s}, {})["out"] for w, s in pairs])


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    rounded = quantizers.qdq_fp8_32(x)
    offsets = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
    first, second = moe_packing.pack(w13, s13, gated=True), moe_packing.pack(w2, s2, gated=False)
    given = {"x": rounded.to(torch.bfloat16), "offsets": offsets}
    given |= {"weight": first.weight, "row_factor": first.row_factor}
    assert torch.equal(given["x"].float(), rounded)  # bf16 holds FP8 numbers exactly
    scalars = {"channels": channels, "limit": 10.0, "tile": 0}
    hidden = moe_gemm.w13_reference({**given, "routing": routing}, scalars)["h"]
    assert torch.equal(hidden.to(torch.bfloat16).float(), hidden)
    given |= {"x": hidden, "weight": second.weight, "row_factor": second.row_factor}
    out = moe_gemm.w2_reference(given, {"features": columns, "tile": 0})["out"].to(torch.bfloat16)
    assert torch.equal(out, experts_of_the_model(rounded, dense(w13, s13), dense(w2, s2), counts, routing))


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
        ({"x": torch.zeros(2, 64, dtype=torch.uint8)}, "x is uint8"),
        ({"offsets": torch.zeros(4, dtype=torch.int64)}, "offsets is int64"),
        ({"weight": torch.zeros(2, 1, 2, 2, 4351, dtype=torch.uint8)}, "weight has shape"),
        ({"out": torch.zeros(2, 128)}, "out is float32"),
    ],
)
def test_refuses_what_the_contract_does_not_allow(change: dict[str, torch.Tensor], said: str) -> None:
    op = load_all()["moe_gemm.w2"]
    tensors = {
        "x": torch.zeros(2, 64, dtype=torch.bfloat16),
        "offsets": torch.zeros(3, dtype=torch.int32),
        "weight": torch.zeros(2, 1, 2, 2, 4352, dtype=torch.uint8),
        "row_factor": torch.zeros(2, 2, 64),
        "out": torch.zeros(2, 128, dtype=torch.bfloat16),
    }
    scalars = {"features": 128, "tile": 0}
    launch.check(op.contract, tensors, scalars)
    with pytest.raises(launch.ContractBroken, match=said):
        launch.check(op.contract, {**tensors, **change}, scalars)
