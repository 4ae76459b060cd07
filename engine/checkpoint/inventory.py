"""Every tensor of a checkpoint, derived from the configuration alone: name, dtype, shape, bytes, part.

Names are those of the release without the optional leading ``model.``. Stored forms:
FP8 weight ``X.weight`` F8_E4M3 [o, i] with ``X.scale`` F8_E8M0 [ceil(o / 32), ceil(i / 32)];
FP4 weight ``X.weight`` I8 [o, i / 2], two E2M1 codes a byte, with ``X.scale`` F8_E8M0 [o, i / 32];
Engram table F8_E4M3 [rows, width] with a scale per row and 32 columns.
For the released configuration: 96085 tensors, 510286023000 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from deepinfer.engine.checkpoint.config import Config, TextConfig, VisionConfig

ITEM_BYTES = {"BF16": 2, "F32": 4, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
# parts, by the names of matrix/model.toml
EXPERTS = "routed experts (FP4 and scales)"
TABLES = "Engram tables (FP8 and scales)"
BACKBONE = "rest of the backbone (attention, shared experts, embeddings, head)"
DRAFT = "draft layers"
VISION = "vision tower and aligner"
ENGRAM = "Engram projections"
PARTS = (EXPERTS, TABLES, BACKBONE, DRAFT, VISION, ENGRAM)


class Tensor(NamedTuple):
    """One stored tensor; ``dtype`` in the words of safetensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: str

    @property
    def bytes(self) -> int:
        """Payload bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def parameters(self) -> int:
        """Trained values: two in a byte of packed FP4, none in scales."""
        return prod(self.shape) * {"F8_E8M0": 0, "I8": 2}.get(self.dtype, 1)


def tensors(config: Config) -> Iterator[Tensor]:
    """All of them, each once: the backbone, its Engram parts, the draft layers, vision."""
    text = config.text
    for name in ("embed.weight", "head.weight"):
        yield Tensor(name, "BF16", (text.vocab_size, text.hidden_size), BACKBONE)
    yield Tensor("norm.weight", "BF16", (text.hidden_size,), BACKBONE)
    for layer in range(text.num_hidden_layers):
        yield from _block(text, "layers.%d" % layer, text.n_routed_experts, BACKBONE, EXPERTS)
        yield from _sources(text, layer)
    for layer, rows in zip(text.engram_layer_ids, text.engram_num_embeddings):
        yield from _engram(text, "layers.%d.engram" % layer, rows)
    for layer in range(text.num_nextn_predict_layers):
        yield from _block(text, "mtp.%d" % layer, text.dspark_n_routed_experts, DRAFT, DRAFT)
    yield from _draft_extras(text)
    yield from _vision(config.vision, text.hidden_size)


class Size(NamedTuple):
    """What a part amounts to. Scales are bytes of it, and no parameters."""

    tensors: int = 0
    parameters: int = 0
    bytes: int = 0


def parts(found: Iterable[Tensor]) -> dict[str, Size]:
    """Sizes by part, all parts, in the order of matrix/model.toml."""
    total = dict.fromkeys(PARTS, Size())
    for tensor in found:
        count, parameters, size = total[tensor.part]
        total[tensor.part] = Size(count + 1, parameters + tensor.parameters, size + tensor.bytes)
    return total


def scale_name(weight: str) -> str:
    """Name of the scale that belongs to the stored weight ``X.weight``."""
    return weight.removesuffix(".weight") + ".scale"


def is_quantised(tensor: Tensor) -> bool:
    """Whether the tensor is codes that mean nothing without their scale."""
    return tensor.dtype in ("F8_E4M3", "I8")


def _fp8(name: str, rows: int, columns: int, part: str) -> Iterator[Tensor]:
    yield Tensor(name + ".weight", "F8_E4M3", (rows, columns), part)
    yield Tensor(name + ".scale", "F8_E8M0", (-(-rows // 32), -(-columns // 32)), part)


def _fp4(name: str, rows: int, columns: int, part: str) -> Iterator[Tensor]:
    yield Tensor(name + ".weight", "I8", (rows, columns // 2), part)
    yield Tensor(name + ".scale", "F8_E8M0", (rows, columns // 32), part)


def _block(text: TextConfig, name: str, experts: int, part: str, expert_part: str) -> Iterator[Tensor]:
    width, streams = text.hidden_size, text.hc_mult
    for site in ("attn", "ffn"):
        yield Tensor("%s.hc_%s_fn" % (name, site), "F32", ((2 + streams) * streams, streams * width), part)
        yield Tensor("%s.hc_%s_base" % (name, site), "F32", ((2 + streams) * streams,), part)
        yield Tensor("%s.hc_%s_scale" % (name, site), "F32", (3,), part)
        yield Tensor("%s.%s_norm.weight" % (name, site), "BF16", (width,), part)
    heads = text.num_attention_heads * text.head_dim
    attention = name + ".attn"
    yield Tensor(attention + ".attn_sink", "F32", (text.num_attention_heads,), part)
    yield Tensor(attention + ".q_norm.weight", "BF16", (text.q_lora_rank,), part)
    yield Tensor(attention + ".kv_norm.weight", "BF16", (text.head_dim,), part)
    yield from _fp8(attention + ".wq_a", text.q_lora_rank, width, part)
    yield from _fp8(attention + ".wq_b", heads, text.q_lora_rank, part)
    yield from _fp8(attention + ".wkv", text.head_dim, width, part)
    yield from _fp8(attention + ".wo_a", text.o_groups * text.o_lora_rank, heads // text.o_groups, part)
    yield from _fp8(attention + ".wo_b", width, text.o_groups * text.o_lora_rank, part)
    yield Tensor(name + ".ffn.gate.weight", "BF16", (experts, width), part)
    yield Tensor(name + ".ffn.gate.bias", "F32", (experts,), part)
    yield Tensor(name + ".ffn.gate.bias_vl", "F32", (experts,), part)
    inner = text.moe_intermediate_size
    for matrix, rows, columns in (("w1", inner, width), ("w2", width, inner), ("w3", inner, width)):
        yield from _fp8("%s.ffn.shared_experts.%s" % (name, matrix), rows, columns, part)
        for expert in range(experts):
            yield from _fp4("%s.ffn.experts.%d.%s" % (name, expert, matrix), rows, columns, expert_part)


def _sources(text: TextConfig, layer: int) -> Iterator[Tensor]:
    name = "layers.%d.attn" % layer
    if layer in text.kv_source_layer_ids:
        latent = (text.head_dim, text.hidden_size)
        yield Tensor(name + ".compressor.wkv.weight", "BF16", latent, BACKBONE)
        if text.compress_ratios[layer] == 2:
            yield Tensor(name + ".compressor.wgate.weight", "BF16", latent, BACKBONE)
        yield Tensor(name + ".compressor.norm.weight", "BF16", (text.head_dim,), BACKBONE)
        yield Tensor(name + ".indexer.wk.weight", "BF16", (text.index_head_dim, text.head_dim), BACKBONE)
        yield Tensor(name + ".indexer.k_norm.weight", "BF16", (text.index_head_dim,), BACKBONE)
    if layer in text.index_source_layer_ids:
        yield from _fp8(name + ".indexer.wq_b", text.index_n_heads * text.index_head_dim, text.q_lora_rank, BACKBONE)
        weights = (text.index_n_heads, text.hidden_size)
        yield Tensor(name + ".indexer.weights_proj.weight", "BF16", weights, BACKBONE)


def _engram(text: TextConfig, name: str, rows: int) -> Iterator[Tensor]:
    yield Tensor(name + ".embed.weight", "F8_E4M3", (rows, text.engram_head_dim), TABLES)
    yield Tensor(name + ".embed.scale", "F8_E8M0", (rows, text.engram_head_dim // 32), TABLES)
    gathered = (text.engram_max_ngram_size - 1) * text.engram_n_heads * text.engram_head_dim
    yield from _fp8(name + ".wkv", text.hidden_size * (text.hc_mult + 1), gathered, ENGRAM)
    for key in ("q_weight", "k_weight"):
        yield Tensor("%s.%s" % (name, key), "BF16", (text.hc_mult, text.hidden_size), ENGRAM)


def _draft_extras(text: TextConfig) -> Iterator[Tensor]:
    width, rank = text.hidden_size, text.dspark_markov_rank
    last = "mtp.%d" % (text.num_nextn_predict_layers - 1)
    yield from _fp8("mtp.0.main_proj", width, len(text.dspark_target_layer_ids) * width, DRAFT)
    yield Tensor("mtp.0.main_norm.weight", "BF16", (width,), DRAFT)
    yield Tensor(last + ".norm.weight", "BF16", (width,), DRAFT)
    yield Tensor(last + ".markov_head.embed.weight", "BF16", (text.vocab_size, rank), DRAFT)
    yield Tensor(last + ".markov_head.head.weight", "BF16", (text.vocab_size, rank), DRAFT)
    yield Tensor(last + ".confidence_head.proj.weight", "BF16", (1, width + rank), DRAFT)


def _vision(vision: VisionConfig, text_width: int) -> Iterator[Tensor]:
    width, inner = vision.hidden_size, vision.intermediate_size
    shapes = {"vision.patch_embed.proj": (width, 3 * vision.patch_size**2)}
    for block in range(vision.num_hidden_layers):
        name = "vision.blocks.%d." % block
        shapes[name + "attn.wqkv"] = (3 * width, width)
        shapes[name + "attn.wo"] = (width, width)
        for norm in ("norm1", "norm2"):
            yield Tensor("%s%s.weight" % (name, norm), "BF16", (width,), VISION)
        yield Tensor(name + "mlp.w1.weight", "BF16", (2 * inner, width), VISION)
        yield Tensor(name + "mlp.w2.weight", "BF16", (width, inner), VISION)
    shapes["aligner.w1"] = (text_width, vision.downsample_ratio**2 * width)
    shapes["aligner.w2"] = (text_width, text_width)
    for name, shape in shapes.items():
        yield Tensor(name + ".weight", "BF16", shape, VISION)
        yield Tensor(name + ".bias", "BF16", shape[:1], VISION)
    yield Tensor("vision.norm.weight", "BF16", (width,), VISION)
    for name in ("image_start", "image_end", "image_newline"):
        yield Tensor(name, "BF16", (text_width,), VISION)
