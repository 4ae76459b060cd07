"""The model of a checkpoint folder: parameters dequantized by the native ops, Engram tables left packed in the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.checkpoint import tokenizer as tokenizers
from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.errors import raise_for
from deepinfer.engine.checkpoint.inventory import TABLES, VISION, scale_name, tensors
from deepinfer.engine.checkpoint.weights import open_weights
from deepinfer.engine.model.draft import DraftModel
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.text import TextModel
from deepinfer.engine.model.vision import VisionModel
from deepinfer.engine.progress import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class Loaded:
    """Configuration, tokenizer and models of one checkpoint; ``vision`` None where images were not asked for."""

    config: Config
    tokenizer: Tokenizer
    text: TextModel
    draft: DraftModel
    vision: VisionModel | None = None


def load(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    act_quant: str = "none",
    kv_quant: bool = True,
    vision: bool = True,
    progress: Progress | None = None,
) -> Loaded:
    """Load ``folder``. Raises what :mod:`deepinfer.engine.checkpoint` raises, with file and tensor.

    ``vision`` False leaves the vision tower, the aligner and the image vectors in the file. Weights go to ``device``
    one by one; Engram tables stay in host memory, where their rows are looked up.
    """
    weights = open_weights(folder, "native")
    tokenizer = tokenizers.read(folder)
    raise_for(tokenizers.problems(tokenizer, weights.config))
    wanted = [one for one in tensors(weights.config) if one.dtype != "F8_E8M0" and (vision or one.part != VISION)]
    total, done = sum(one.bytes for one in wanted), 0
    found: dict[str, torch.Tensor] = {}
    for one in wanted:
        if one.part == TABLES:
            for name in (one.name, scale_name(one.name)):
                found[name] = weights.files.tensor(name).view(torch.uint8)
        else:
            tensor = weights.load(one.name, torch.float32 if dtype != torch.bfloat16 else dtype)
            found[one.name] = tensor.to(device=device, dtype=None if one.dtype == "F32" else dtype)
        done += one.bytes
        if progress is not None:
            progress(done, total, one.name)
    token_map = torch.tensor(tokenizers.compressed_map(tokenizer, weights.config.text.vocab_size), device=device)
    params = Parameters(found, dtype, act_quant)
    text = TextModel(weights.config.text, params, token_map, kv_quant=kv_quant)
    seen = VisionModel(weights.config.vision, params) if vision else None
    return Loaded(weights.config, tokenizer, text, DraftModel(text), seen)
