"""Tensor counts and bytes, the primes of the tables, and the names of parameters."""

from __future__ import annotations

from collections import Counter

import pytest

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint.inventory import BACKBONE, parts, tensors
from deepinfer.engine.checkpoint.names import Parameter, parameter
from deepinfer.engine.checkpoint.primes import is_prime, table_primes, table_rows
from deepinfer.engine.checkpoint.released import released_config
from deepinfer.engine.checkpoint.tiny import tiny_values
from deepinfer.matrix.index import load_index

RELEASED = list(tensors(released_config()))
BY_NAME = {tensor.name: tensor for tensor in RELEASED}


def test_the_release_has_its_published_size() -> None:
    assert len(RELEASED) == len(BY_NAME) == 96085
    assert sum(tensor.bytes for tensor in RELEASED) == 510286023000


def test_parameters_are_those_that_are_published() -> None:
    """552 B in the backbone and 196 B in the Engram tables; scales are no parameters, a byte of FP4 holds two."""
    found = parts(RELEASED)
    backbone = found["routed experts (FP4 and scales)"], found[BACKBONE]
    assert round(sum(size.parameters for size in backbone) / 1e9) == 552
    assert found["Engram tables (FP8 and scales)"].parameters == 196_613_849_600
    assert found["routed experts (FP4 and scales)"].parameters == 40 * 384 * 3 * 2304 * 5120


def test_parts_are_those_of_the_matrix() -> None:
    model = load_index()["model"]
    found = parts(RELEASED)
    assert {name: size.bytes for name, size in found.items()} == {
        part["name"]: part["bytes"] for part in model["parts"]
    }
    assert list(parts(RELEASED)) == [part["name"] for part in model["parts"]]


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("embed.weight", "BF16", (129280, 5120)),
        ("layers.39.hc_ffn_fn", "F32", (24, 20480)),
        ("layers.0.attn.wq_b.weight", "F8_E4M3", (32768, 1280)),
        ("layers.0.attn.wo_a.scale", "F8_E8M0", (256, 128)),
        ("layers.7.ffn.experts.383.w1.weight", "I8", (2304, 2560)),
        ("layers.7.ffn.experts.383.w2.scale", "F8_E8M0", (5120, 72)),
        ("layers.7.ffn.shared_experts.w2.weight", "F8_E4M3", (5120, 2304)),
        ("layers.14.engram.embed.scale", "F8_E8M0", (384016682, 8)),
        ("layers.1.engram.wkv.weight", "F8_E4M3", (25600, 6144)),
        ("layers.36.attn.indexer.wq_b.weight", "F8_E4M3", (4096, 1280)),
        ("mtp.0.main_proj.weight", "F8_E4M3", (5120, 15360)),
        ("mtp.2.confidence_head.proj.weight", "BF16", (1, 5376)),
        ("vision.patch_embed.proj.weight", "BF16", (1024, 588)),
        ("aligner.w1.weight", "BF16", (5120, 9216)),
    ],
)
def test_shapes_of_the_release(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    assert (BY_NAME[name].dtype, BY_NAME[name].shape) == (dtype, shape)


def test_only_sources_have_compressors_and_only_ratio_two_a_gate() -> None:
    owners = [name.split(".")[1] for name in BY_NAME if name.endswith("compressor.wkv.weight")]
    gates = [name.split(".")[1] for name in BY_NAME if name.endswith("compressor.wgate.weight")]
    assert (owners, gates) == (["2", "8", "14", "20"], ["2", "8", "14"])


def test_the_tiny_configuration_has_its_size() -> None:
    found = list(tensors(configuration.parse(tiny_values())))
    assert (len(found), sum(tensor.bytes for tensor in found)) == (962, 4623026)


def test_primes_of_the_tables() -> None:
    first, second = table_primes(2, 4, 8, 16000000)
    assert first[0][:3] == (16000057, 16000079, 16000081)
    assert (first[2][-1], second[0][0], second[2][-1]) == (16000463, 16000477, 16000889)
    assert table_rows(2, 4, 8, 16000000) == (384006168, 384016682)
    assert table_primes(2, 4, 2, 256)[1] == ((283, 293), (307, 311), (313, 317))


def test_a_prime_is_a_prime() -> None:
    sieve = [number for number in range(2, 5000) if all(number % divisor for divisor in range(2, int(number**0.5) + 1))]
    assert [number for number in range(5000) if is_prime(number)] == sieve
    assert is_prime(2**61 - 1) and not is_prime(3215031751) and not is_prime((2**31 - 1) ** 2)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.embed.weight", Parameter("embed.weight")),
        ("layers.3.attn.attn_sink", Parameter("layers.3.attn.sink")),
        ("layers.3.hc_attn_fn", Parameter("layers.3.hc_attn.fn")),
        ("layers.3.ffn.experts.17.w2.weight", Parameter("layers.3.ffn.experts.w2", 17)),
        ("mtp.1.ffn.experts.0.w1.scale", Parameter("draft.layers.1.ffn.experts.w1.scale", 0)),
        ("mtp.0.main_proj.weight", Parameter("draft.main_proj.weight")),
        ("mtp.2.norm.weight", Parameter("draft.norm.weight")),
        ("mtp.2.attn_norm.weight", Parameter("draft.layers.2.attn_norm.weight")),
        ("layers.1.ffn.shared_experts.w1.weight", Parameter("layers.1.ffn.shared_experts.w1.weight")),
    ],
)
def test_parameters_of_stored_names(stored: str, name: Parameter) -> None:
    assert parameter(stored) == name


def test_no_two_tensors_are_one_parameter() -> None:
    assert Counter(map(parameter, BY_NAME)).most_common(1)[0][1] == 1
