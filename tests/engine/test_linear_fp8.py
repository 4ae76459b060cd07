"""The reference of the FP8 linear layer against plain loops, and what its contract refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import conformance, launch
from deepinfer.engine.ops.linear_fp8 import draw, linear_fp8_reference
from deepinfer.engine.ops.registry import load_all

OP = load_all()["linear.fp8"]


def value(code: int) -> float:
    """One E4M3FN byte, by hand."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, (code >> 3) & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * size


def test_known_values() -> None:
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    codes[0, :3] = torch.tensor([0x38, 0xB8, 0x01], dtype=torch.uint8)  # 1, -1, 2^-9
    weights = torch.zeros(32, 32, dtype=torch.uint8)
    weights[0, :3] = torch.tensor([0x40, 0x38, 0x7E], dtype=torch.uint8)  # 2, 1, 448
    scales = {"x_scale": torch.tensor([[128]], dtype=torch.uint8), "w_scale": torch.tensor([[125]], dtype=torch.uint8)}
    got = linear_fp8_reference({"x_code": codes, "w_code": weights, **scales}, {"groups": 1})["y"]
    assert got[0, 0].item() == (2 - 1 + 448 * 2.0**-9) * 2.0**1 * 2.0**-2
    assert not got[0, 1:].any()


def test_groups_read_their_own_inputs_and_scales() -> None:
    rows, outputs, inputs, groups = 3, 96, 64, 3
    tensors = draw(rows, outputs, inputs, groups, torch.Generator().manual_seed(5), "cpu")
    got = linear_fp8_reference(tensors, {"groups": groups})["y"]
    x, xs, w, ws = (tensors[name].tolist() for name in ("x_code", "x_scale", "w_code", "w_scale"))
    for m in range(rows):
        for j in (0, 31, 32, 64, 95):
            base, total = j // (outputs // groups) * inputs, 0.0
            for k in range(inputs):
                power = xs[m][(base + k) // 32] + ws[j // 32][k // 32] - 254
                total += value(x[m][base + k]) * value(w[j][k]) * 2.0**power
            assert got[m, j].item() == pytest.approx(total, rel=1e-12)


def test_a_row_does_not_depend_on_the_others() -> None:
    tensors = draw(8, 64, 96, 1, torch.Generator().manual_seed(6), "cpu")
    whole = linear_fp8_reference(tensors, {"groups": 1})["y"]
    part = {name: tensor[2:5] if name.startswith("x_") else tensor for name, tensor in tensors.items()}
    assert torch.allclose(linear_fp8_reference(part, {"groups": 1})["y"], whole[2:5], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("x_code", (4, 96), "groups \\* K"),
        ("x_scale", (4, 3), "groups \\* K / 32"),
        ("w_scale", (3, 2), "N / 32"),
        ("w_scale", (2, 1), "K / 32"),
        ("y", (4, 32), "N is 64"),
    ],
)
def test_a_wrong_shape_is_refused_before_the_launch(name: str, shape: tuple[int, int], says: str) -> None:
    tensors = draw(4, 64, 64, 2, torch.Generator().manual_seed(7), "cpu")
    tensors["y"] = conformance.poisoned((4, 64), torch.bfloat16, "cpu")
    scalars = {"groups": 2, "plan": 0}
    launch.check(OP.contract, tensors, scalars)
    tensors[name] = torch.zeros(shape, dtype=tensors[name].dtype)
    with pytest.raises(launch.ContractBroken, match=says):
        launch.check(OP.contract, tensors, scalars)


def test_a_wrong_dtype_or_a_missing_scalar_is_refused() -> None:
    tensors = draw(2, 32, 32, 1, torch.Generator().manual_seed(8), "cpu")
    tensors["y"] = torch.zeros(2, 32, dtype=torch.float16)
    with pytest.raises(launch.ContractBroken, match="float16"):
        launch.check(OP.contract, tensors, {"groups": 1, "plan": 0})
    with pytest.raises(launch.ContractBroken, match="plan"):
        launch.check(OP.contract, tensors, {"groups": 1})
