"""A tiny configuration that exercises every role of a layer, and random fp32 parameters for it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from deepinfer.engine.checkpoint.config import RopeScaling, TextConfig
from deepinfer.engine.model.layout import layers
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.text import TextModel

_VALUES: dict[str, object] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 2,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": RopeScaling(16.0, 32.0, 1.0, 64),
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "sliding_window": 16,
    "compress_ratios": (0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0),
    "kv_source_layer_ids": (2, 4, 6),
    "index_source_layer_ids": (2, 4, 6, 8),
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": (1, 4),
    "engram_num_embeddings": (1618, 1824),
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 256,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 512,
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 500,
    "dspark_target_layer_ids": (7, 8, 9),
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "use_fp4_sparse_kv": True,
}


def config(**changes: object) -> TextConfig:
    """Window-only, Engram on a window and on a source layer, ratio 2 and 1, reuse, reindex, candidates."""
    return TextConfig(**{**_VALUES, **changes})  # type: ignore[arg-type]


class _Draw:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def normal(self, name: str, *shape: int, std: float | None = None, mean: float = 0.0) -> None:
        scale = 1.0 / math.sqrt(shape[-1]) if std is None else std
        self.tensors[name] = torch.randn(*shape, generator=self.generator) * scale + mean


def parameters(shape: TextConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random parameters by release name; every path alive, one expert large enough for its clamps to act."""
    draw = _Draw(seed)
    width = shape.hidden_size
    for name in ("embed.weight", "head.weight"):
        draw.normal(name, shape.vocab_size, width, std=1.0 if name[0] == "e" else None)
    draw.normal("norm.weight", width, std=0.1, mean=1.0)
    for layer in layers(shape):
        _block(draw, shape, "layers.%d." % layer.number)
        prefix = "layers.%d.attn." % layer.number
        if layer.owns_kv:
            draw.normal(prefix + "compressor.wkv.weight", shape.head_dim, width)
            draw.normal(prefix + "compressor.norm.weight", shape.head_dim, std=0.1, mean=1.0)
            draw.normal(prefix + "indexer.wk.weight", shape.index_head_dim, shape.head_dim)
            draw.normal(prefix + "indexer.k_norm.weight", shape.index_head_dim, std=0.1, mean=1.0)
            if layer.ratio == 2:
                draw.normal(prefix + "compressor.wgate.weight", shape.head_dim, width)
        if layer.owns_index:
            draw.normal(prefix + "indexer.wq_b.weight", shape.index_n_heads * shape.index_head_dim, shape.q_lora_rank)
            draw.normal(prefix + "indexer.weights_proj.weight", shape.index_n_heads, width)
        if layer.engram is not None:
            _engram(draw, shape, "layers.%d.engram." % layer.number, shape.engram_num_embeddings[layer.engram])
    return draw.tensors


def draft_parameters(shape: TextConfig, seed: int) -> dict[str, torch.Tensor]:
    """The same for the draft layers; embedding and head are the backbone's."""
    draw = _Draw(seed)
    width, count = shape.hidden_size, shape.num_nextn_predict_layers
    for number in range(count):
        _block(draw, replace(shape, n_routed_experts=shape.dspark_n_routed_experts), "mtp.%d." % number)
    draw.normal("mtp.0.main_proj.weight", width, len(shape.dspark_target_layer_ids) * width)
    draw.normal("mtp.0.main_norm.weight", width, std=0.1, mean=1.0)
    last = "mtp.%d." % (count - 1)
    draw.normal(last + "norm.weight", width, std=0.1, mean=1.0)
    draw.normal(last + "markov_head.embed.weight", shape.vocab_size, shape.dspark_markov_rank, std=1.0)
    draw.normal(last + "markov_head.head.weight", shape.vocab_size, shape.dspark_markov_rank)
    draw.normal(last + "confidence_head.proj.weight", 1, width + shape.dspark_markov_rank)
    return draw.tensors


def _block(draw: _Draw, shape: TextConfig, prefix: str) -> None:
    width, n = shape.hidden_size, shape.hc_mult
    for site in ("attn", "ffn"):
        draw.normal(prefix + "hc_%s_fn" % site, (2 + n) * n, n * width, std=0.5 / math.sqrt(n * width))
        draw.normal(prefix + "hc_%s_base" % site, (2 + n) * n, std=0.5)
        draw.normal(prefix + "hc_%s_scale" % site, 3, std=0.2, mean=1.0)
        draw.normal(prefix + "%s_norm.weight" % site, width, std=0.1, mean=1.0)
    draw.normal(prefix + "attn.attn_sink", shape.num_attention_heads, std=1.0)
    draw.normal(prefix + "attn.wq_a.weight", shape.q_lora_rank, width)
    draw.normal(prefix + "attn.q_norm.weight", shape.q_lora_rank, std=0.1, mean=1.0)
    draw.normal(prefix + "attn.wq_b.weight", shape.num_attention_heads * shape.head_dim, shape.q_lora_rank)
    draw.normal(prefix + "attn.wkv.weight", shape.head_dim, width)
    draw.normal(prefix + "attn.kv_norm.weight", shape.head_dim, std=0.1, mean=1.0)
    inner = shape.num_attention_heads * shape.head_dim // shape.o_groups
    draw.normal(prefix + "attn.wo_a.weight", shape.o_groups * shape.o_lora_rank, inner)
    draw.normal(prefix + "attn.wo_b.weight", width, shape.o_groups * shape.o_lora_rank)
    draw.normal(prefix + "ffn.gate.weight", shape.n_routed_experts, width)
    for name in ("bias", "bias_vl"):
        draw.normal(prefix + "ffn.gate." + name, shape.n_routed_experts, std=0.1)
    names = ["experts.%d." % number for number in range(shape.n_routed_experts)] + ["shared_experts."]
    for number, name in enumerate(names):
        large = 5.0 / math.sqrt(width) if number == 1 else None
        draw.normal(prefix + "ffn.%sw1.weight" % name, shape.moe_intermediate_size, width, std=large)
        draw.normal(prefix + "ffn.%sw3.weight" % name, shape.moe_intermediate_size, width, std=large)
        draw.normal(prefix + "ffn.%sw2.weight" % name, width, shape.moe_intermediate_size)


def _engram(draw: _Draw, shape: TextConfig, prefix: str, rows: int) -> None:
    def random_bytes(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=draw.generator, dtype=torch.uint8)

    draw.tensors[prefix + "embed.weight"] = random_bytes(0, 0x7F, rows, shape.engram_head_dim)
    draw.tensors[prefix + "embed.scale"] = random_bytes(116, 121, rows, shape.engram_head_dim // 32)
    wide = (shape.engram_max_ngram_size - 1) * shape.engram_n_heads * shape.engram_head_dim
    draw.normal(prefix + "wkv.weight", (shape.hc_mult + 1) * shape.hidden_size, wide)
    for name in ("q_weight", "k_weight"):
        draw.normal(prefix + name, shape.hc_mult, shape.hidden_size, std=0.1, mean=1.0)


def model(seed: int = 3, *, kv_quant: bool = False, dtype: torch.dtype = torch.float32, **more: str) -> TextModel:
    shape = config()
    tensors = {
        name: value if value.dtype == torch.uint8 else value.to(dtype) if dtype == torch.float64 else value
        for name, value in parameters(shape, seed).items()
    }
    token_map = torch.arange(shape.vocab_size)
    return TextModel(shape, Parameters(tensors, dtype, **more), token_map, kv_quant=kv_quant)
