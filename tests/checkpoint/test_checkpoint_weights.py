"""Loaded weights against the formats' definitions in plain fp64, by the native ops and by the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damage import copy, poke

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine import native
from deepinfer.engine.checkpoint.errors import NoSuchTensor, ValueRefused
from deepinfer.engine.checkpoint.names import Parameter
from deepinfer.engine.checkpoint.weights import Weights, open_weights
from deepinfer.errors import DeepInferError, UsageError

FP8 = "layers.3.attn.wq_b.weight"
FP4 = "layers.3.ffn.experts.5.w2.weight"
TABLE = "layers.4.engram.embed.weight"


@pytest.fixture(params=["reference", "native"])
def weights(tiny: Path, request: pytest.FixtureRequest) -> Weights:
    try:
        return open_weights(tiny, request.param)
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")


def e4m3(byte: int) -> float:
    """By the definition: sign, 4 bits of exponent with bias 7, 3 bits of fraction."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return -size if byte & 128 else size


def e2m1(nibble: int) -> float:
    size = [0, 0.5, 1, 1.5, 2, 3, 4, 6][nibble & 7]
    return -size if nibble & 8 else size


def raw(weights: Weights, name: str) -> Any:
    return weights.files.tensor(name).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8_blocks(weights: Weights, dtype: torch.dtype) -> None:
    code, scale = raw(weights, FP8), raw(weights, FP8.replace("weight", "scale"))
    assert scale.unique().numel() >= 4  # a shifted or transposed scale would show
    got = weights.load(FP8, dtype)
    assert got.dtype == dtype
    rows, columns = code.shape
    needed = [
        [e4m3(int(code[i, j])) * 2.0 ** (int(scale[i // 32, j // 32]) - 127) for j in range(columns)]
        for i in range(rows)
    ]
    assert torch.equal(got.double(), torch.tensor(needed, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp4_groups(weights: Weights, dtype: torch.dtype) -> None:
    code, scale = raw(weights, FP4), raw(weights, FP4.replace("weight", "scale"))
    assert scale.unique().numel() >= 4
    rows, columns = code.shape[0], 2 * code.shape[1]
    needed = [
        [e2m1(int(code[i, j // 2]) >> 4 * (j % 2) & 15) * 2.0 ** (int(scale[i, j // 32]) - 127) for j in range(columns)]
        for i in range(rows)
    ]
    assert torch.equal(weights.load(FP4, dtype).double(), torch.tensor(needed, dtype=torch.float64))


def test_engram_rows_in_the_order_asked_for(weights: Weights) -> None:
    code, scale = raw(weights, TABLE), raw(weights, TABLE.replace("weight", "scale"))
    ids = torch.tensor([1823, 0, 7, 7, 1000])
    needed = [[e4m3(int(byte)) * 2.0 ** (int(scale[row, 0]) - 127) for byte in code[row]] for row in ids.tolist()]
    got = weights.rows(TABLE, ids)
    assert torch.equal(got.double(), torch.tensor(needed, dtype=torch.float64))
    assert weights.rows(TABLE, ids[:0]).shape == (0, 32)


def test_what_is_no_code_is_as_stored(weights: Weights) -> None:
    assert weights.load("embed.weight").dtype == torch.bfloat16
    assert weights.load("model.layers.0.hc_attn_fn").dtype == torch.float32
    assert torch.equal(weights.load("norm.weight"), weights.files.tensor("norm.weight"))


def test_native_and_reference_agree_on_everything(tiny: Path) -> None:
    try:
        fast = open_weights(tiny, "native")
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")
    plain = dict(open_weights(tiny, "reference").stream(lambda _: True))
    seen = dict(fast.stream(lambda _: True))
    assert seen.keys() == plain.keys()
    assert all(torch.equal(seen[name], plain[name]) for name in seen)


def test_streaming_tells_how_far_it_is(tiny: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    weights = open_weights(tiny, "reference")
    found = dict(weights.stream(lambda name: ".experts." in name, progress=lambda *step: steps.append(step)))
    assert len(found) == len(steps) == (10 * 8 + 2 * 4) * 3
    assert Parameter("layers.0.ffn.experts.w1", 3) in found
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert steps[-1][0] == steps[-1][1] == (10 * 8 + 2 * 4) * 3 * 4096
    assert TABLE not in {step[2] for step in steps}


@pytest.mark.parametrize(
    ("name", "code"),
    [("layers.3.attn.wq_b.scale", 0xFF), (FP8, 0x7F), (FP4.replace("weight", "scale"), 0xFF)],
)
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_nan_code_is_refused_with_file_and_tensor(
    tiny: Path, tmp_path: Path, name: str, code: int, backend: str
) -> None:
    folder = copy(tiny, tmp_path / "copy")
    poke(folder, name, 3, bytes([code]))
    try:
        weights = open_weights(folder, backend)
    except DeepInferError as error:
        pytest.skip(f"not run: {error.code}: {error.what}")
    with pytest.raises(ValueRefused, match="DI506") as caught:
        weights.load(name.replace("scale", "weight"))
    assert name in str(caught.value) and ".safetensors" in str(caught.value)


def test_words_that_no_tensor_has(tiny: Path) -> None:
    weights = open_weights(tiny, "reference")
    for name in ("nothing", FP8.replace("weight", "scale")):
        with pytest.raises(NoSuchTensor, match="no weight"):
            weights.load(name)
    with pytest.raises(NoSuchTensor, match="read by rows"):
        weights.load(TABLE)
    with pytest.raises(NoSuchTensor, match="no Engram table"):
        weights.rows(FP8, torch.tensor([0]))
    for ids in ([-1], [1824]):
        with pytest.raises(NoSuchTensor, match="outside the 1824 rows"):
            weights.rows(TABLE, torch.tensor(ids))
    with pytest.raises(UsageError, match="float16"):
        weights.load(FP8, torch.float16)
    with pytest.raises(UsageError, match="backend"):
        open_weights(tiny, "auto")
    with pytest.raises(NoSuchTensor, match="did you mean 'norm.weight'"):
        weights.files.tensor("norms.weight")


def test_a_missing_native_module_is_an_error_and_no_fallback(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DeepInferError("there is no native module", fix="pip install .")

    monkeypatch.setattr(native, "load", absent)
    with pytest.raises(DeepInferError, match="no native module"):
        open_weights(tiny, "native")
    assert open_weights(tiny, "reference").load(FP8).shape == (256, 64)


def test_mapped_tensors_share_the_file(tiny: Path) -> None:
    files = open_weights(tiny, "reference").files
    assert files.tensor("embed.weight").data_ptr() == files.tensor("embed.weight").data_ptr()
