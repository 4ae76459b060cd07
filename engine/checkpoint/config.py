"""The configuration of a checkpoint: ``config.json`` parsed into plain values; all that is wrong is reported at once.

Key names are those of the release. Only what this engine computes is accepted: see ``config_rules`` for the relations
between keys. Layers count from 0; sizes are elements, never bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.checkpoint import config_rules, json_file
from deepinfer.engine.checkpoint.errors import ConfigRefused, Problem, raise_for
from deepinfer.engine.checkpoint.fields import FILE, Section

LIMIT = 1 << 20  # bytes of config.json; the release's has 3311
MOST = 1 << 16  # of anything that a width or a count can be, so that a damaged file asks for no giant list
ARCHITECTURE = "DeepseekV41ForCausalLM"
NO_MEANING = ("transformers_version", "_name_or_path", "auto_map", "initializer_range", "use_cache")


@dataclass(frozen=True)
class QuantizationConfig:
    """How weights are stored. Every value is fixed: FP8 (E4M3) with an E8M0 scale per 32 x 32, experts MXFP4."""

    quant_method: str = "fp8"
    activation_scheme: str = "dynamic"
    weight_block_size: tuple[int, int] = (32, 32)
    scale_fmt: str = "ue8m0"
    expert_dtype: str = "fp4"


@dataclass(frozen=True)
class RopeScaling:
    """YaRN of the layers with compression."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int

    def numbers(self) -> dict[str, float]:
        """What :func:`deepinfer.engine.ops.rope.frequencies` takes as ``yarn``."""
        return {name: float(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class TextConfig:
    """The text model, its Engram tables and its draft layers."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    use_fp4_sparse_kv: bool
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    @property
    def prefill_layers(self) -> int:
        """The first backbone layer with ratio 1: layers below it read no compressed entries of it or later ones."""
        ratios = self.compress_ratios[: self.num_hidden_layers]
        return ratios.index(1) if 1 in ratios else self.num_hidden_layers

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed entries ``layer`` reads: the last KV source at or before it."""
        return max((one for one in self.kv_source_layer_ids if one <= layer), default=None)

    def index_source(self, layer: int) -> int | None:
        """The layer whose selection ``layer`` uses: the last index source at or before it."""
        return max((one for one in self.index_source_layer_ids if one <= layer), default=None)


@dataclass(frozen=True)
class VisionConfig:
    """The image encoder and how images become tokens. ``max_wh_ratio`` None: no limit."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True)
class Config:
    """All of config.json that has a meaning."""

    text: TextConfig
    vision: VisionConfig
    quantization: QuantizationConfig
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    tokenizer_compatibility: str


def read(folder: Path) -> Config:
    """The configuration in ``folder``. Raises :class:`ConfigRefused` with every problem."""
    config, problems = examine(json_file.read(folder, FILE, LIMIT, ConfigRefused))
    raise_for(problems)
    return config


def parse(values: dict[str, Any]) -> Config:
    """The same from an object already read."""
    config, problems = examine(values)
    raise_for(problems)
    return config


def examine(values: dict[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration and all that is wrong with it; with problems, the configuration is not to be used."""
    problems: list[Problem] = []
    top = Section("", values, problems)
    top.exactly("architectures", [ARCHITECTURE])
    top.exactly("model_type", "deepseek_v41")
    top.exactly("dtype", "bfloat16")
    sections = [top.section(key) for key in ("quantization_config", "text_config", "vision_config")]
    config = Config(
        _text(sections[1]),
        _vision(sections[2]),
        _quantization(sections[0]),
        top.integer("bos_token_id", 0),
        top.integer("eos_token_id", 0),
        top.integer("pad_token_id", 0),
        top.integer("image_token_id", 0),
        top.choice("tokenizer_compatibility", ("release", "native"), "release"),
    )
    top.finish(NO_MEANING)
    if top.sound and all(section.sound for section in sections):
        problems += config_rules.problems(config)
    return config, problems


def _quantization(section: Section) -> QuantizationConfig:
    known = QuantizationConfig()
    for key in ("quant_method", "activation_scheme", "scale_fmt", "expert_dtype"):
        section.exactly(key, getattr(known, key))
    section.exactly("weight_block_size", list(known.weight_block_size))
    section.finish(())
    return known


def _fixed_text(section: Section) -> None:
    """Keys with one accepted value; the second group may be absent."""
    section.exactly("model_type", "deepseek_v41_text")
    section.exactly("num_key_value_heads", 1)
    section.exactly("hidden_act", "silu")
    section.exactly("attention_bias", False)
    section.exactly("attention_dropout", 0.0)
    section.exactly("tie_word_embeddings", False)
    section.exactly("n_shared_experts", 1)
    section.exactly("scoring_func", "sqrtsoftplus")
    section.exactly("topk_method", "noaux_tc")
    section.exactly("norm_topk_prob", True)
    section.exactly("hc_shifted", True, True)
    section.exactly("dspark_target_attn_input", True, True)
    section.exactly("gate_temp", 1.0, 1.0)


def _rope_scaling(section: Section) -> RopeScaling | None:
    section.read.add("rope_scaling")
    if section.values.get("rope_scaling") is None:
        return None
    inner = section.section("rope_scaling")
    inner.exactly("rope_type", "yarn")
    scaling = RopeScaling(
        inner.number("factor"),
        inner.number("beta_fast"),
        inner.number("beta_slow"),
        inner.integer("original_max_position_embeddings"),
    )
    inner.finish(())
    section.sound = section.sound and inner.sound
    return scaling


def _text(section: Section) -> TextConfig:
    _fixed_text(section)
    layers = section.integer("num_hidden_layers", 1, 512)
    sources = section.integers("kv_source_layer_ids", 0, MOST)
    section.exactly("index_k_source_layer_ids", list(sources), list(sources))
    counts: dict[str, Any] = {
        name: section.integer(name, 1, MOST)
        for name in (
            *("hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank"),
            *("o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "candidate_topk_blocks"),
            *("candidate_block_size", "num_experts_per_tok", "moe_intermediate_size", "engram_head_dim"),
            *("dspark_block_size", "dspark_markov_rank", "dspark_num_experts_per_tok"),
        )
    }
    numbers: dict[str, Any] = {
        name: section.number(name)
        for name in (
            *("swiglu_limit", "rms_norm_eps", "rope_theta", "compress_rope_theta", "hc_eps"),
            "routed_scaling_factor",
        )
    }
    text = TextConfig(
        vocab_size=section.integer("vocab_size", 3, 1 << 24),
        num_hidden_layers=layers,
        max_position_embeddings=section.integer("max_position_embeddings"),
        rope_scaling=_rope_scaling(section),
        compress_ratios=section.integers("compress_ratios", 0, MOST),
        kv_source_layer_ids=sources,
        index_source_layer_ids=section.integers("index_source_layer_ids", 0, MOST),
        candidate_source_layer_id=section.optional_integer("candidate_source_layer_id", 0, MOST),
        hc_mult=section.integer("hc_mult", 1, 16),
        hc_sinkhorn_iters=section.integer("hc_sinkhorn_iters", 1, 1000),
        use_fp4_sparse_kv=section.flag("use_fp4_sparse_kv", True),
        n_routed_experts=section.integer("n_routed_experts", 1, 4096),
        dspark_n_routed_experts=section.integer("dspark_n_routed_experts", 1, 4096),
        engram_layer_ids=section.integers("engram_layer_ids", 0, MOST),
        engram_num_embeddings=section.integers("engram_num_embeddings", 1, 1 << 40),
        engram_max_ngram_size=section.integer("engram_max_ngram_size", 2, 8),
        engram_vocab_size=section.integer("engram_vocab_size", 2),
        engram_n_heads=section.integer("engram_n_heads", 1, 32),
        engram_pad_token_id=section.integer("engram_pad_token_id", 0),
        engram_compressed_vocab_size=section.integer("engram_compressed_vocab_size"),
        num_nextn_predict_layers=section.integer("num_nextn_predict_layers", 1, 64),
        dspark_noise_token_id=section.integer("dspark_noise_token_id", 0),
        dspark_target_layer_ids=section.integers("dspark_target_layer_ids", 0, MOST),
        **counts,
        **numbers,
    )
    section.finish(NO_MEANING)
    return text


def _vision(section: Section) -> VisionConfig:
    section.exactly("model_type", "deepseek_v41_vision")
    section.read.add("max_wh_ratio")
    ratio = section.values.get("max_wh_ratio")
    vision = VisionConfig(
        num_hidden_layers=section.integer("num_hidden_layers", 1, 512),
        hidden_size=section.integer("hidden_size", 1, MOST),
        num_attention_heads=section.integer("num_attention_heads", 1, MOST),
        intermediate_size=section.integer("intermediate_size", 1, MOST),
        patch_size=section.integer("patch_size", 1, 1024),
        rope_theta=section.number("rope_theta"),
        downsample_ratio=section.integer("downsample_ratio", 1, 64),
        max_image_tokens=section.integer("max_image_tokens", 4, MOST),
        min_pixels=section.integer("min_pixels"),
        max_wh_ratio=None if ratio is None else section.number("max_wh_ratio"),
    )
    section.finish(NO_MEANING)
    return vision
