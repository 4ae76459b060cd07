"""What is stored against what the configuration implies: every tensor there, none else, each of its dtype and shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.errors import Problem, TensorMismatch
from deepinfer.engine.checkpoint.inventory import Tensor, is_quantised, scale_name
from deepinfer.engine.checkpoint.shards import COPY, INDEX, Files
from deepinfer.errors import nearest

_EXPERT = re.compile(r"(layers|mtp)\.(\d+)\.ffn\.experts\.(\d+)\.")
_TIE = re.compile(r"mtp\.\d+\.(embed|head)\.weight")
_KEPT_AS_STORED = re.compile(r"hc_(attn|ffn)_(fn|base|scale)$|attn_sink$|gate\.bias(_vl)?$")


def problems(config: Config, needed: Iterable[Tensor], files: Files) -> Iterator[Problem]:
    """Every difference, first what is missing or wrong, then what is unknown."""
    names = set()
    for tensor in needed:
        names.add(tensor.name)
        if tensor.name not in files.stored:
            yield _missing(tensor, files)
        else:
            yield from _differs(tensor, files)
    for name, found in files.stored.items():
        if name not in names and not is_tie(name):
            yield Problem(TensorMismatch, found.file, found.key, _unknown(name, config, names), COPY % "the checkpoint")


def is_tie(name: str) -> bool:
    """A draft layer's copy of the embedding or the head: the same as the main model's, and not read."""
    return _TIE.fullmatch(name) is not None


def _missing(tensor: Tensor, files: Files) -> Problem:
    what = "missing: %s %s needed" % (tensor.dtype, list(tensor.shape))
    expert = _EXPERT.match(tensor.name)
    if tensor.name.endswith(".scale") and tensor.name[: -len("scale")] + "weight" in files.stored:
        what = "missing: its weight is stored as codes, which mean nothing without the scale"
    elif is_quantised(tensor) and scale_name(tensor.name) in files.stored:
        what = "missing: only its scale is stored"
    elif expert:
        what = "missing: expert %s of %s.%s is incomplete" % (expert[3], expert[1], expert[2])
    elif ".shared_experts." in tensor.name:
        what = "missing: the shared expert needs w1, w2 and w3"
    elif tensor.name == "vision.patch_embed.proj.weight" and "vision.patch_embed.weight" in files.stored:
        what = "missing: stored as vision.patch_embed.weight, a spelling that is not read"
    return Problem(TensorMismatch, INDEX, tensor.name, what, COPY % "the checkpoint")


def _differs(tensor: Tensor, files: Files) -> Iterator[Problem]:
    found = files.stored[tensor.name]
    if found.dtype != tensor.dtype:
        what = "%s found, %s needed" % (found.dtype, tensor.dtype)
        if _KEPT_AS_STORED.search(tensor.name):
            what += "; it is used as stored and never cast"
        yield Problem(TensorMismatch, found.file, found.key, what, COPY % found.file)
    if found.shape != tensor.shape:
        what = "shape %s found, %s needed by config.json" % (list(found.shape), list(tensor.shape))
        yield Problem(TensorMismatch, found.file, found.key, what, COPY % found.file)


def _unknown(name: str, config: Config, names: set[str]) -> str:
    last = name.rsplit(".", 1)[-1]
    expert = _EXPERT.match(name)
    if re.search(r"(^|\.)hc_(attn|ffn|head)_norm\.weight$", name):
        return "a checkpoint with separate mHC norms; one with folded norms is needed"
    if last.startswith("hc_head_"):
        return "unknown: with hc_shifted there is no mHC head"
    if expert:
        count = config.text.n_routed_experts if expert[1] == "layers" else config.text.dspark_n_routed_experts
        if int(expert[3]) >= count:
            return "unknown: config.json has experts 0 to %d here" % (count - 1)
    return "unknown: config.json implies no such tensor%s" % (nearest(name, list(names)) if len(names) < 5000 else "")
