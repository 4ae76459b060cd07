"""The fused hyper-connections: their reference against the model's own ops, the packed weights, and refusals."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.ops import mhc, mhc_fused
from deepinfer.engine.ops.launch import ContractBroken, check
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.quantizers import qdq_fp8_32
from deepinfer.engine.ops.registry import load_all

SCALARS: dict[str, int | float] = {"iterations": 20, "eps": 1e-6, "norm_eps": 1e-20}


def drawn(rows: int, *, expand: bool = True, seed: int | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31 if seed is None else seed)
    return mhc_fused.draw_inputs(rows, generator, "cpu", expand=expand)


def test_packed_weights_are_the_weights_to_one_part_in_2_to_the_17() -> None:
    fn = torch.randn(24, 20480) * 10.0 ** torch.empty(24, 20480).uniform_(-6, 3)
    error = (mhc_fused.unpack_fn(mhc_fused.pack_fn(fn)) - fn.double()).abs()
    assert bool((error <= fn.double().abs() * 2.0**-17).all())


def test_every_packed_element_is_where_the_header_says() -> None:
    fn = (torch.arange(24 * 20480).reshape(24, 20480) + 1).float()
    packed = mhc_fused.pack_fn(fn)
    high = fn.bfloat16()
    rest = (fn - high.float()).bfloat16()
    blocks = ((high, 0, high, 8), (rest, 0, rest, 8), (high, 16, rest, 16))
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    for s, w, k, h, g, t in torch.stack(
        [torch.randint(0, top, (300,), generator=generator) for top in (16, 10, 4, 2, 8, 4)], -1
    ).tolist():
        channel = 320 * s + 32 * w + 8 * t + 4 * h
        for block, (first, a, second, b) in enumerate(blocks):
            here = slice(5120 * k + channel, 5120 * k + channel + 4)
            one, two = first[a + g, here], second[b + g, here]
            expected = torch.cat([one[:2], two[:2], one[2:], two[2:]])
            assert torch.equal(packed[s, w, 2 * k + h, block, 4 * g + t], expected)


@pytest.mark.parametrize(("shape", "dtype"), [((24, 20479), torch.float32), ((24, 20480), torch.float64)])
def test_weights_of_another_shape_or_type_are_refused(shape: tuple[int, int], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"fp32 \[24, 20480\]"):
        mhc_fused.pack_fn(torch.zeros(shape, dtype=dtype))


def test_a_boundary_is_what_the_model_does_between_two_sub_layers() -> None:
    inputs = drawn(5)
    got = mhc_fused.boundary_reference(inputs, SCALARS)
    fn = mhc_fused.unpack_fn(inputs["fn"]).float()
    streams = mhc.expand(inputs["x"], inputs["streams"], inputs["post"], inputs["comb"])
    pre, post, comb = mhc.mix(streams, fn, inputs["base"], inputs["scale"], iterations=20, eps=1e-6, norm_eps=1e-20)
    y = rms_norm(mhc.collapse(streams, inputs["pre"]), inputs["weight"], 1e-20)
    for name, wanted, bound in (
        ("new_streams", streams, 1e-3),
        ("next_pre", pre, 1e-4),
        ("next_post", post, 1e-4),
        ("next_comb", comb, 1e-4),
        ("y", y, 2e-3),
    ):
        error = (got[name].double() - wanted.double()).norm() / wanted.double().norm()
        assert float(error) <= bound, name


def test_a_site_is_a_boundary_without_the_expand() -> None:
    inputs = drawn(3)
    whole = mhc_fused.boundary_reference(inputs, SCALARS)
    part = mhc_fused.site_reference({**inputs, "streams": whole["new_streams"]}, SCALARS)
    assert all(torch.equal(part[name], whole[name]) for name in part)
    assert set(whole) == {*part, "new_streams"}


def test_codes_and_scales_stand_for_the_quantized_y() -> None:
    y = (torch.randn(6, 5120) * 10.0 ** torch.empty(6, 1).uniform_(-8, 8)).bfloat16()
    y[1] = 0.0
    y[2, :32] = 450.0
    codes, scales = mhc_fused.fp8_codes(y)
    power = torch.ldexp(torch.ones(scales.shape), scales.int() - 127).repeat_interleave(32, 1)
    values = codes.view(torch.float8_e4m3fn).float() * power
    assert torch.equal(values.bfloat16(), qdq_fp8_32(y))
    assert scales[2, 0] == 128 and set(scales[1].tolist()) == {105}  # 450 needs 2; zeros get the floor of 1e-4


def test_a_token_of_zeros_stays_zero_and_has_the_coefficients_of_the_base() -> None:
    inputs = drawn(2)
    inputs["x"][1] = 0.0
    inputs["streams"][1] = 0.0
    out = mhc_fused.boundary_reference(inputs, SCALARS)
    assert not out["y"][1].any() and not (out["codes"][1] & 127).any()  # the weight may leave a sign
    wanted = torch.sigmoid(inputs["base"][:4].double()) + 1e-6
    assert torch.allclose(out["next_pre"][1], wanted, rtol=0, atol=1e-12)


def test_the_reference_of_a_token_does_not_depend_on_the_others() -> None:
    inputs = drawn(4)
    alone = {
        name: value[2:3] if name in ("x", "streams", "post", "comb", "pre") else value for name, value in inputs.items()
    }
    both, one = (mhc_fused.boundary_reference(some, SCALARS) for some in (inputs, alone))
    assert all(torch.allclose(both[name][2:3].double(), one[name].double(), rtol=1e-12, atol=0) for name in one)


@pytest.mark.parametrize("name", ["mhc.boundary", "mhc.site"])
@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("streams", lambda tensor: tensor[:, :3].contiguous()),
        ("streams", lambda tensor: tensor.float()),
        ("pre", lambda tensor: tensor[1:].contiguous()),
        ("weight", lambda tensor: tensor[:-1].contiguous()),
        ("fn", lambda tensor: tensor.reshape(48, 20480)),
        ("base", lambda tensor: tensor.repeat(2)[::2]),
    ],
    ids=["three-streams", "fp32-streams", "one-token-less", "narrow-weight", "flat-fn", "strided-base"],
)
def test_what_the_contract_does_not_allow_is_refused(name: str, argument: str, change: object) -> None:
    expand = name == "mhc.boundary"
    inputs = drawn(4, expand=expand)
    outputs = {
        key: torch.empty(shape, dtype=dtype) for key, (shape, dtype) in mhc_fused.outputs_of(4, expand=expand).items()
    }
    contract = load_all()[name].contract
    check(contract, {**inputs, **outputs}, SCALARS)
    broken = {**inputs, argument: change(inputs[argument])}  # type: ignore[operator]
    with pytest.raises(ContractBroken):
        check(contract, {**broken, **outputs}, SCALARS)
