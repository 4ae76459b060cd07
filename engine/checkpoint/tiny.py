"""A complete checkpoint of a few megabytes in the release's formats, for tests and first steps.

10 backbone layers (two window-only, two KV groups at ratio 2, one at ratio 1 with candidates), Engram on a window layer
and on a KV source, 2 draft layers, an image encoder: every kind of tensor of the release. Its text means nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import tiny_tokenizer, tokenizer
from deepinfer.engine.checkpoint.errors import PackageMissing, TargetRefused
from deepinfer.engine.checkpoint.fields import FILE
from deepinfer.engine.checkpoint.inventory import Tensor, tensors
from deepinfer.engine.checkpoint.primes import table_rows
from deepinfer.engine.checkpoint.released import released_values
from deepinfer.engine.checkpoint.shards import INDEX, missing
from deepinfer.errors import UsageError

INDEX_HEADS = 16  # with few, exact ties between index scores are frequent
SHARDS = 3
_TEXT: dict[str, Any] = {
    "vocab_size": tiny_tokenizer.SIZE,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 2,
    "max_position_embeddings": 4096,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8],
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 8,
    "engram_layer_ids": [1, 4],
    "engram_vocab_size": 256,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "num_nextn_predict_layers": 2,
    "dspark_noise_token_id": tiny_tokenizer.NOISE,
    "dspark_target_layer_ids": [7, 8, 9],
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}
_VISION: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_image_tokens": 64,
    "min_pixels": 7056,
}


def tiny_values(index_heads: int = INDEX_HEADS, compressed: int = tiny_tokenizer.SIZE) -> dict[str, Any]:
    """config.json of a tiny checkpoint; ``compressed`` is the size of the compressed vocabulary."""
    values = released_values()
    values["image_token_id"] = tiny_tokenizer.IMAGE
    values["tokenizer_compatibility"] = "native"
    text = values["text_config"]
    text.update(_TEXT)
    text["index_n_heads"] = index_heads
    text["engram_compressed_vocab_size"] = compressed
    text["rope_scaling"]["original_max_position_embeddings"] = 64
    sizes = (text["engram_max_ngram_size"], text["engram_n_heads"], text["engram_vocab_size"])
    text["engram_num_embeddings"] = list(table_rows(len(text["engram_layer_ids"]), *sizes))
    values["vision_config"].update(_VISION)
    return values


def make(folder: Path, seed: int, index_heads: int = INDEX_HEADS) -> None:
    """Write a tiny checkpoint into ``folder``, which is new or empty. The same seed gives the same bytes.

    Everything is written beside ``folder`` and moved there at the end, so a folder of that name is complete.
    """
    if not 0 <= seed < 2**63:
        raise UsageError("--seed is %d" % seed, fix="a number from 0 to 2^63 - 1")
    if not 1 <= index_heads <= 256:
        raise UsageError("--index-heads is %d" % index_heads, fix="a number from 1 to 256, 16 by default")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TargetRefused("%s exists and is not empty" % folder, fix="name a new folder, or empty this one")
    partial = folder.parent / (".%s.partial-%d" % (folder.name, os.getpid()))
    try:
        partial.mkdir(parents=True)
        _write(partial, seed, index_heads)
        partial.replace(folder)
    except OSError as error:
        what = "%s cannot be written: %s" % (folder, error.strerror or error)
        raise TargetRefused(what, fix="name a folder that you may write to, on a disk with 10 MB free") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(folder: Path, seed: int, index_heads: int) -> None:
    (folder / tokenizer.FILE).write_text(tiny_tokenizer.tokenizer_json(), encoding="utf-8")
    compressed = 1 + max(tokenizer.compressed_map(tokenizer.read(folder), tiny_tokenizer.SIZE))
    values = tiny_values(index_heads, compressed)
    (folder / FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    needed = list(tensors(configuration.parse(values)))
    weight_map: dict[str, str] = {}
    for number, group in enumerate(_groups(needed)):
        name = "model-%05d-of-%05d.safetensors" % (number + 1, SHARDS)
        weight_map.update(_write_shard(folder / name, group, seed))
    total = sum(tensor.bytes for tensor in needed)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _groups(needed: list[Tensor]) -> list[list[Tensor]]:
    """The tensors in order, cut into shards of about equal size; scales go where their weights are."""
    total, done = sum(tensor.bytes for tensor in needed), 0
    groups: list[list[Tensor]] = [[] for _ in range(SHARDS)]
    for tensor in needed:
        if tensor.dtype != "F8_E8M0":
            groups[min(done * SHARDS // total, SHARDS - 1)].append(tensor)
        done += tensor.bytes
    return groups


def _write_shard(path: Path, group: list[Tensor], seed: int) -> dict[str, str]:
    try:
        from safetensors import __version__
        from safetensors.torch import save_file
    except ImportError as error:
        raise missing("safetensors") from error
    if tuple(map(int, __version__.split(".")[:2])) < (0, 6):
        what = "safetensors %s is too old: it has no F8_E8M0" % __version__
        raise PackageMissing(what, fix='pip install "safetensors>=0.6"')
    from deepinfer.engine.checkpoint.tiny_values import draw

    drawn = {name: value.contiguous() for tensor in group for name, value in draw(tensor, seed).items()}
    save_file(drawn, path, metadata={"format": "pt"})
    path.chmod((path.parent / tokenizer.FILE).stat().st_mode)  # the library writes for the owner alone
    return dict.fromkeys(drawn, path.name)
