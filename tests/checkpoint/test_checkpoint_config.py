"""Every rejection of a configuration, each as one change of a right one, and that everything wrong is said at once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint.config_rules import truncation_problems
from deepinfer.engine.checkpoint.errors import ConfigRefused, Refused
from deepinfer.engine.checkpoint.released import released_config, released_values
from deepinfer.engine.checkpoint.tiny import tiny_values

GONE = object()
TEXT = "text_config."

# (key, value that is refused, words of the message)
MUTANTS: list[tuple[str, Any, str]] = [
    ("architectures", ["LlamaForCausalLM"], "DeepseekV41ForCausalLM"),
    ("architectures", ["DeepseekV41ForCausalLM"] * 2, "needed"),
    ("model_type", "deepseek_v4", "deepseek_v41"),
    ("dtype", "float16", "bfloat16"),
    ("dtype", GONE, "missing"),
    ("quantization_config", GONE, "no such section"),
    ("quantization_config", {}, "missing"),
    ("quantization_config.quant_method", "awq", "fp8"),
    ("quantization_config.activation_scheme", "static", "dynamic"),
    ("quantization_config.weight_block_size", [128, 128], "32"),
    ("quantization_config.weight_block_size", [32, 32.5], "32"),
    ("quantization_config.scale_fmt", "float", "ue8m0"),
    ("quantization_config.expert_dtype", "fp8", "fp4"),
    ("quantization_config.modules_to_not_convert", [], "unknown key"),
    (TEXT + "model_type", "deepseek_v41", "deepseek_v41_text"),
    (TEXT + "hidden_act", "gelu", "silu"),
    (TEXT + "attention_bias", True, "False"),
    (TEXT + "attention_bias", 0, "False"),
    (TEXT + "attention_dropout", 0.1, "0.0"),
    (TEXT + "num_key_value_heads", 2, "1"),
    (TEXT + "scoring_func", "sigmoid", "sqrtsoftplus"),
    (TEXT + "topk_method", "greedy", "noaux_tc"),
    (TEXT + "norm_topk_prob", False, "True"),
    (TEXT + "tie_word_embeddings", True, "False"),
    (TEXT + "n_shared_experts", 2, "1"),
    (TEXT + "hc_shifted", False, "True"),
    (TEXT + "dspark_target_attn_input", False, "True"),
    (TEXT + "gate_temp", 2.0, "1.0"),
    (TEXT + "index_k_source_layer_ids", [2], "needed"),
    (TEXT + "hidden_sise", 128, "did you mean 'hidden_size'"),
    (TEXT + "vocab_size", 0, "integer from 3"),
    (TEXT + "vocab_size", True, "integer"),
    (TEXT + "vocab_size", 512.0, "integer"),
    (TEXT + "hidden_size", 10**30, "integer"),
    (TEXT + "rms_norm_eps", 0.0, "number greater than 0"),
    (TEXT + "rms_norm_eps", "1e-6", "number"),
    (TEXT + "use_fp4_sparse_kv", 1, "true or false"),
    (TEXT + "compress_ratios", "0022", "list of integers"),
    (TEXT + "rope_scaling", {"rope_type": "linear", "factor": 2}, "yarn"),
    (TEXT + "rope_scaling", [], "an object needed"),
    (TEXT + "compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0], "11 entries for 10 backbone and 2 draft"),
    (TEXT + "compress_ratios", [0, 0, 4, 4, 4, 4, 1, 1, 1, 1, 0, 0], "only 0, 1, 2"),
    (TEXT + "compress_ratios", [0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 0, 0], "zeros, then twos, then ones"),
    (TEXT + "compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 1], "draft layers"),
    (TEXT + "kv_source_layer_ids", [2, 4, 5, 6], "not in index_source_layer_ids"),
    (TEXT + "kv_source_layer_ids", [1, 2, 4, 6], "layer 1 has ratio 0"),
    (TEXT + "kv_source_layer_ids", [4, 2, 6], "ascending"),
    (TEXT + "kv_source_layer_ids", [2, 4, 6, 10], "below 10"),
    (TEXT + "kv_source_layer_ids", [4, 6], "no source at or before"),
    (TEXT + "kv_source_layer_ids", [2, 4], "first with ratio 1"),
    (TEXT + "kv_source_layer_ids", [2, 4], "reads layer 4 (ratio 2)"),
    (TEXT + "index_source_layer_ids", [2, 6, 8], "not in index_source_layer_ids"),
    (TEXT + "index_source_layer_ids", [2, 6, 8], "another KV source"),
    (TEXT + "index_source_layer_ids", [1, 2, 4, 6, 8], "ratio 0"),
    (TEXT + "candidate_source_layer_id", 7, "not in index_source_layer_ids"),
    (TEXT + "candidate_source_layer_id", 4, "another KV source"),
    (TEXT + "candidate_topk_blocks", 1, "fewer than index_topk"),
    (TEXT + "candidate_topk_blocks", 12, "multiple of 8"),
    (TEXT + "candidate_block_size", 4, "8 or 16"),
    (TEXT + "engram_num_embeddings", [1618, 1825], "add up to 1824"),
    (TEXT + "engram_num_embeddings", [1618], "1 tables for 2 layers"),
    (TEXT + "dspark_block_size", 0, "integer from 1"),
    (TEXT + "engram_layer_ids", [4, 1], "ascending"),
    (TEXT + "engram_pad_token_id", 3, "pad_token_id"),
    (TEXT + "engram_compressed_vocab_size", 513, "more than the vocabulary"),
    (TEXT + "dspark_noise_token_id", 512, "outside the vocabulary"),
    (TEXT + "dspark_target_layer_ids", [], "empty"),
    (TEXT + "dspark_target_layer_ids", [8, 10], "below 10"),
    (TEXT + "hidden_size", 130, "no multiple of 32"),
    (TEXT + "o_groups", 3, "does not divide"),
    (TEXT + "qk_rope_head_dim", 15, "even"),
    (TEXT + "num_experts_per_tok", 9, "more than the 8"),
    (TEXT + "dspark_num_experts_per_tok", 5, "more than the 4"),
    ("vision_config.model_type", "siglip", "deepseek_v41_vision"),
    ("vision_config.hidden_size", 72, "heads"),
    ("vision_config.max_wh_ratio", -1, "number"),
    ("vision_config", 5, "an object needed"),
    ("pad_token_id", 0, "2 needed"),
    ("image_token_id", 512, "outside the vocabulary"),
    ("tokenizer_compatibility", "other", "one of release, native"),
    ("tokenizer_compatibility", ["native"], "one of release, native"),
    ("surprise", 1, "unknown key"),
]


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *path, last = key.split(".")
    place = values
    for part in path:
        place = place[part]
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    return values


@pytest.mark.parametrize(("key", "value", "words"), MUTANTS, ids=[f"{row[0]}-{n}" for n, row in enumerate(MUTANTS)])
def test_a_wrong_configuration_is_refused_by_key(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigRefused) as caught:
        configuration.parse(changed(tiny_values(), key, value))
    texts = [problem.text() for problem in caught.value.problems]
    assert any(words in text and key.split(".")[-1] in text for text in texts), texts
    assert all(problem.file == "config.json" and problem.fix for problem in caught.value.problems)
    assert str(caught.value).startswith("DI502: config.json")


@pytest.mark.parametrize("section", ["", "text_config", "quantization_config", "vision_config"])
def test_every_key_is_needed_or_has_a_stated_default(section: str) -> None:
    optional = {"tokenizer_compatibility", "rope_scaling", "candidate_source_layer_id", "max_wh_ratio"}
    values = tiny_values()
    for key in values[section] if section else values:
        if key not in optional:
            path = f"{section}.{key}" if section else key
            with pytest.raises(ConfigRefused, match=key):
                configuration.parse(changed(tiny_values(), path, GONE))


def test_everything_wrong_is_said_at_once() -> None:
    values = tiny_values()
    values["dtype"] = "float32"
    values["text_config"]["hidden_act"] = "gelu"
    values["text_config"]["o_groups"] = 3
    del values["vision_config"]["patch_size"]
    _, problems = configuration.examine(values)
    wrong = {"dtype", "text_config.hidden_act", "vision_config.patch_size"}
    assert {problem.subject for problem in problems} == wrong
    values["vision_config"]["patch_size"] = 14  # relations are judged once every value is one
    wrong = {"dtype", "text_config.hidden_act", "text_config.o_groups"}
    assert {problem.subject for problem in configuration.examine(values)[1]} == wrong


def test_another_start_of_the_primes_is_another_table() -> None:
    with pytest.raises(ConfigRefused, match="engram_num_embeddings"):
        configuration.parse(changed(tiny_values(), TEXT + "engram_vocab_size", 300))


def test_defaults_are_the_stated_ones() -> None:
    values = released_values()
    config = configuration.parse(values)
    assert config.tokenizer_compatibility == "release"
    assert config.text.use_fp4_sparse_kv
    del values["text_config"]["rope_scaling"]
    assert configuration.parse(values).text.rope_scaling is None
    for off in (None, -1):
        values["text_config"]["candidate_source_layer_id"] = off
        assert configuration.parse(values).text.candidate_source_layer_id is None


def test_the_released_configuration_has_its_values() -> None:
    text = released_config().text
    assert text.prefill_layers == 20
    assert [text.kv_source(layer) for layer in (1, 2, 7, 8, 19, 20, 39)] == [None, 2, 2, 8, 14, 20, 20]
    assert [text.index_source(layer) for layer in (2, 21, 24, 39)] == [2, 20, 24, 36]
    assert text.engram_num_embeddings == (384006168, 384016682)
    assert text.rms_norm_eps == 1e-20
    assert len(text.compress_ratios) == 43
    assert dataclasses.is_dataclass(text) and not truncation_problems(text)


def test_compact_replay_names_what_forbids_it() -> None:
    def problems(key: str, value: Any) -> list[str]:
        text = configuration.parse(changed(tiny_values(), TEXT + key, value)).text
        return [problem.text() for problem in truncation_problems(text)]

    assert problems("dspark_target_layer_ids", [7, 8, 9]) == []
    assert "both sides of layer 6" in problems("dspark_target_layer_ids", [5, 8])[0]
    assert "layer 7" in problems("engram_layer_ids", [1, 7])[0]
    values = tiny_values()
    values["text_config"].update(
        compress_ratios=[0, 0] + [2] * 8 + [0, 0], candidate_source_layer_id=None, kv_source_layer_ids=[2, 4, 6]
    )
    assert "nothing to truncate" in truncation_problems(configuration.parse(values).text)[0].what


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON"),
        (b"[]", "list found, an object needed"),
        (b"\xff", "no JSON"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": ' * 100000, ""),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b" " * ((1 << 20) + 1), "at most"),
    ],
)
def test_a_file_that_is_no_configuration(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigRefused) as caught:
        configuration.read(tmp_path)
    assert words in str(caught.value)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="DI501") as caught:
        configuration.read(tmp_path / "nowhere")
    assert "config.json" in str(caught.value)


def test_reading_a_file_is_parsing_its_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_values()), encoding="utf-8")
    assert configuration.read(tmp_path) == configuration.parse(tiny_values())
