"""Relations between the keys of a configuration that the model's arithmetic needs. Each broken one is a problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepinfer.engine.checkpoint.errors import ConfigRefused, Problem
from deepinfer.engine.checkpoint.fields import FILE
from deepinfer.engine.checkpoint.primes import table_rows

if TYPE_CHECKING:
    from deepinfer.engine.checkpoint.config import Config, TextConfig, VisionConfig

GROUP = 32  # columns that share a scale, in weights and in caches
EXPERTS = 1 << 17  # routed experts of all layers together; the release has 15744
FIX = "take config.json from where the checkpoint came from"


def problems(config: Config) -> list[Problem]:
    """Everything that is wrong with values which are well-formed one by one."""
    text = config.text
    found = [*_tokens(config), *_widths(text), *_vision(config.vision), *_experts(text), *_engram(text)]
    ratios = list(_ratios(text))
    # the maps of sources mean something only over ratios of the right form
    return [*found, *ratios, *(() if ratios else _sources(text)), *_drafts(text)]


def truncation_problems(text: TextConfig) -> list[Problem]:
    """What forbids running only the last prompt rows in the layers from ``prefill_layers`` on (compact replay)."""
    found, border = [], text.prefill_layers
    if border == text.num_hidden_layers:
        found.append(_problem("text_config.compress_ratios", "no layer with ratio 1: there is nothing to truncate"))
    for layer in text.engram_layer_ids:
        if layer >= border:
            found.append(
                _problem("text_config.engram_layer_ids", "layer %d needs all rows beyond %d" % (layer, border))
            )
    for layer in text.kv_source_layer_ids:
        if layer > border:
            found.append(
                _problem("text_config.kv_source_layer_ids", "layer %d needs all rows beyond %d" % (layer, border))
            )
    if len({layer >= border for layer in text.dspark_target_layer_ids}) > 1:
        what = "%s lie on both sides of layer %d" % (list(text.dspark_target_layer_ids), border)
        found.append(_problem("text_config.dspark_target_layer_ids", what))
    return [Problem(one.kind, one.file, one.subject, one.what, "switch bounded replay off") for one in found]


def _problem(key: str, what: str) -> Problem:
    return Problem(ConfigRefused, FILE, key, what, FIX)


def _text_problem(key: str, what: str) -> Problem:
    return _problem("text_config." + key, what)


def _tokens(config: Config) -> Iterator[Problem]:
    vocabulary = config.text.vocab_size
    if config.pad_token_id != 2:
        yield _problem("pad_token_id", "%d found, 2 needed" % config.pad_token_id)
    if config.text.engram_pad_token_id != config.pad_token_id:
        yield _text_problem("engram_pad_token_id", "is not pad_token_id (%d)" % config.pad_token_id)
    if config.tokenizer_compatibility == "release" and (config.bos_token_id, config.eos_token_id) != (0, 1):
        yield _problem("bos_token_id, eos_token_id", "0 and 1 needed unless tokenizer_compatibility is native")
    for key in ("bos_token_id", "eos_token_id", "image_token_id"):
        if getattr(config, key) >= vocabulary:
            yield _problem(key, "%d is outside the vocabulary of %d" % (getattr(config, key), vocabulary))
    if config.text.dspark_noise_token_id >= vocabulary:
        yield _text_problem("dspark_noise_token_id", "outside the vocabulary of %d" % vocabulary)
    if config.text.engram_compressed_vocab_size > vocabulary:
        yield _text_problem("engram_compressed_vocab_size", "more than the vocabulary of %d" % vocabulary)


def _widths(text: TextConfig) -> Iterator[Problem]:
    grouped = (
        *("hidden_size", "moe_intermediate_size", "head_dim", "q_lora_rank", "o_lora_rank", "index_head_dim"),
        "engram_head_dim",
    )
    for key in grouped:
        if getattr(text, key) % GROUP:
            yield _text_problem(key, "%d is no multiple of %d, the columns of a scale" % (getattr(text, key), GROUP))
    if text.num_attention_heads % text.o_groups:
        yield _text_problem("o_groups", "%d does not divide %d heads" % (text.o_groups, text.num_attention_heads))
    if text.qk_rope_head_dim % 2 or text.qk_rope_head_dim > min(text.head_dim, text.index_head_dim):
        yield _text_problem("qk_rope_head_dim", "must be even and at most head_dim and index_head_dim")


def _vision(vision: VisionConfig) -> Iterator[Problem]:
    if vision.hidden_size % (4 * vision.num_attention_heads):
        what = "%d does not split into %d heads of a width that 4 divides" % (
            vision.hidden_size,
            vision.num_attention_heads,
        )
        yield _problem("vision_config.hidden_size", what)


def _experts(text: TextConfig) -> Iterator[Problem]:
    if text.num_experts_per_tok > text.n_routed_experts:
        yield _text_problem("num_experts_per_tok", "more than the %d experts" % text.n_routed_experts)
    if text.dspark_num_experts_per_tok > text.dspark_n_routed_experts:
        yield _text_problem("dspark_num_experts_per_tok", "more than the %d experts" % text.dspark_n_routed_experts)
    count = text.num_hidden_layers * text.n_routed_experts
    count += text.num_nextn_predict_layers * text.dspark_n_routed_experts
    if count > EXPERTS:
        yield _text_problem("n_routed_experts", "%d experts in all, at most %d are read" % (count, EXPERTS))


def _ascending(text: TextConfig, key: str) -> Iterator[Problem]:
    """Layer ids of the backbone, each once, in order."""
    layers = getattr(text, key)
    if list(layers) != sorted(set(layers)) or (layers and layers[-1] >= text.num_hidden_layers):
        yield _text_problem(key, "%s: layers below %d in ascending order needed" % (layers, text.num_hidden_layers))


def _engram(text: TextConfig) -> Iterator[Problem]:
    yield from _ascending(text, "engram_layer_ids")
    if len(text.engram_layer_ids) > 64 or len(text.engram_layer_ids) != len(text.engram_num_embeddings):
        counts = (len(text.engram_num_embeddings), len(text.engram_layer_ids))
        yield _text_problem("engram_num_embeddings", "%d tables for %d layers" % counts)
        return
    sizes = (text.engram_max_ngram_size, text.engram_n_heads, text.engram_vocab_size)
    needed = table_rows(len(text.engram_layer_ids), *sizes)
    for layer, found, right in zip(text.engram_layer_ids, text.engram_num_embeddings, needed):
        if found != right:
            what = "%d rows for layer %d, but its primes add up to %d" % (found, layer, right)
            yield _text_problem("engram_num_embeddings", what)


def _ratios(text: TextConfig) -> Iterator[Problem]:
    layers, drafts, ratios = text.num_hidden_layers, text.num_nextn_predict_layers, text.compress_ratios
    if len(ratios) != layers + drafts:
        what = "%d entries for %d backbone and %d draft layers" % (len(ratios), layers, drafts)
        yield _text_problem("compress_ratios", what)
        return
    if set(ratios) - {0, 1, 2}:
        yield _text_problem("compress_ratios", "%s found; only 0, 1, 2 exist" % sorted(set(ratios) - {0, 1, 2}))
    if any(ratios[layers:]):
        yield _text_problem("compress_ratios", "draft layers have %s, 0 needed" % list(ratios[layers:]))
    order = {0: 0, 2: 1, 1: 2}
    ranks = [order.get(ratio, 0) for ratio in ratios[:layers]]
    if ranks != sorted(ranks):
        yield _text_problem("compress_ratios", "the backbone must have zeros, then twos, then ones")


def _sources(text: TextConfig) -> Iterator[Problem]:
    broken = [*_ascending(text, "kv_source_layer_ids"), *_ascending(text, "index_source_layer_ids")]
    if broken:
        yield from broken
        return
    for layer in text.kv_source_layer_ids:
        if layer not in text.index_source_layer_ids:
            yield _text_problem("kv_source_layer_ids", "layer %d is not in index_source_layer_ids" % layer)
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        for layer in getattr(text, key):
            if text.compress_ratios[layer] == 0:
                yield _text_problem(key, "layer %d has ratio 0 and compresses nothing" % layer)
    for layer, ratio in enumerate(text.compress_ratios[: text.num_hidden_layers]):
        if ratio:
            yield from _layer_sources(text, layer, ratio)
    border = text.prefill_layers
    if border < text.num_hidden_layers and text.kv_source(border) != border:
        yield _text_problem("kv_source_layer_ids", "layer %d, the first with ratio 1, must be a source" % border)
    yield from _candidates(text)


def _layer_sources(text: TextConfig, layer: int, ratio: int) -> Iterator[Problem]:
    source, index = text.kv_source(layer), text.index_source(layer)
    if source is None or index is None:
        yield _text_problem(
            "kv_source_layer_ids", "layer %d has ratio %d and no source at or before it" % (layer, ratio)
        )
        return
    if text.compress_ratios[source] != ratio:
        pair = (layer, ratio, source, text.compress_ratios[source])
        yield _text_problem("kv_source_layer_ids", "layer %d (ratio %d) reads layer %d (ratio %d)" % pair)
    if text.kv_source(index) != source:
        what = "layer %d selects by layer %d, which reads another KV source" % (layer, index)
        yield _text_problem("index_source_layer_ids", what)


def _candidates(text: TextConfig) -> Iterator[Problem]:
    source = text.candidate_source_layer_id
    if source is None:
        return
    if source not in text.index_source_layer_ids:
        yield _text_problem("candidate_source_layer_id", "layer %d is not in index_source_layer_ids" % source)
    for layer in text.index_source_layer_ids:
        if layer > source and text.kv_source(layer) != text.kv_source(source):
            what = "index source %d after it reads another KV source than layer %d" % (layer, source)
            yield _text_problem("candidate_source_layer_id", what)
    if text.candidate_topk_blocks * text.candidate_block_size < text.index_topk:
        yield _text_problem("candidate_topk_blocks", "the candidates are fewer than index_topk (%d)" % text.index_topk)
    if text.candidate_topk_blocks % 8:
        yield _text_problem("candidate_topk_blocks", "%d is no multiple of 8" % text.candidate_topk_blocks)
    if text.candidate_block_size not in (8, 16):
        yield _text_problem("candidate_block_size", "%d found, 8 or 16 needed" % text.candidate_block_size)


def _drafts(text: TextConfig) -> Iterator[Problem]:
    if not text.dspark_target_layer_ids:
        yield _text_problem("dspark_target_layer_ids", "empty; the draft layers read the main model there")
    yield from _ascending(text, "dspark_target_layer_ids")
