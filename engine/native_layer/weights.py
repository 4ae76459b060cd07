"""A layer's weights as the kernels read them, made once from the tensors of a release.

FP8 weights stay as they are stored. Routed experts and the hyper-connection projections are reordered by their ops'
``pack`` functions; the gate and up projection of the shared expert become one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.layout import Layer
from deepinfer.engine.ops.mhc_fused import HIDDEN, STREAMS, pack_fn
from deepinfer.engine.ops.moe_packing import Packed, pack

# What the kernels are compiled for: (attribute of the configuration, value).
_FIXED = (
    ("hidden_size", HIDDEN),
    ("hc_mult", STREAMS),
    ("num_attention_heads", 64),
    ("head_dim", 512),
    ("qk_rope_head_dim", 64),
    ("index_n_heads", 32),
    ("index_head_dim", 128),
    ("candidate_block_size", 8),
    ("use_fp4_sparse_kv", True),
)


@dataclass(frozen=True)
class Fp8:
    """``code`` uint8 [N, K] E4M3, ``scale`` uint8 [N / 32, K / 32] E8M0."""

    code: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True)
class Site:
    """A hyper-connection site and the norm behind it: ``fn`` of ``pack_fn``, the rest as released."""

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True)
class Attention:
    """Projections, norms and sink of the attention half."""

    wq_a: Fp8
    q_norm: torch.Tensor
    wq_b: Fp8
    wkv: Fp8
    kv_norm: torch.Tensor
    wo_a: Fp8
    wo_b: Fp8
    sink: torch.Tensor


@dataclass(frozen=True)
class Compressor:
    """bf16 projections of the entries and index keys that a source of ratio 1 publishes."""

    wkv: torch.Tensor
    norm: torch.Tensor
    wk: torch.Tensor
    k_norm: torch.Tensor


@dataclass(frozen=True)
class Indexer:
    """Index queries and the weights of their heads, bf16 [32, D]."""

    wq_b: Fp8
    weights_proj: torch.Tensor


@dataclass(frozen=True)
class Experts:
    """Router of all experts; the routed experts ``first`` to ``first + count - 1``; the shared expert."""

    gate: torch.Tensor
    bias: torch.Tensor
    image_bias: torch.Tensor
    first: int
    count: int
    w13: Packed
    w2: Packed
    shared_w13: Fp8
    shared_w2: Fp8


@dataclass(frozen=True)
class LayerWeights:
    """All of one layer; ``compressor`` and ``indexer`` None where the layer has none."""

    attention_site: Site
    attention: Attention
    compressor: Compressor | None
    indexer: Indexer | None
    experts_site: Site
    experts: Experts

    @classmethod
    def of(
        cls, tensors: Mapping[str, torch.Tensor], config: TextConfig, layer: Layer, experts: range, device: str
    ) -> LayerWeights:
        """Weights of ``layer`` on ``device``, with the routed ``experts`` of this rank (consecutive ids).

        ``tensors``: release name -> tensor as stored. Raises ``ValueError`` for a shape or a layer that the
        kernels have no form for, ``KeyError`` for a missing tensor, and what ``pack`` raises.
        """
        supported(config, layer)
        if experts.step != 1 or not 0 <= experts.start < experts.stop <= config.n_routed_experts:
            raise ValueError("experts %s are not consecutive ids below %d" % (experts, config.n_routed_experts))
        read = _Reader(tensors, "layers.%d." % layer.number, device)
        attention = Attention(
            wq_a=read.fp8("attn.wq_a"),
            q_norm=read("attn.q_norm.weight"),
            wq_b=read.fp8("attn.wq_b"),
            wkv=read.fp8("attn.wkv"),
            kv_norm=read("attn.kv_norm.weight"),
            wo_a=read.fp8("attn.wo_a"),
            wo_b=read.fp8("attn.wo_b"),
            sink=read("attn.attn_sink"),
        )
        names = ("attn.compressor.wkv", "attn.compressor.norm", "attn.indexer.wk", "attn.indexer.k_norm")
        return cls(
            attention_site=read.site("attn"),
            attention=attention,
            compressor=Compressor(*(read(name + ".weight") for name in names)) if layer.owns_kv else None,
            indexer=Indexer(read.fp8("attn.indexer.wq_b"), read("attn.indexer.weights_proj.weight"))
            if layer.owns_index
            else None,
            experts_site=read.site("ffn"),
            experts=read.experts(experts),
        )


def supported(config: TextConfig, layer: Layer) -> None:
    """Raises ``ValueError`` where the kernels have no form for ``layer``."""
    for name, wanted in _FIXED:
        if getattr(config, name) != wanted:
            raise ValueError("%s is %s; the kernels are compiled for %s" % (name, getattr(config, name), wanted))
    if layer.owns_kv and layer.ratio != 1:
        raise ValueError("layer %d compresses two tokens to one; the chain has ratio 1 alone" % layer.number)
    if layer.engram is not None:
        raise ValueError("layer %d looks up n-grams before its mix; the chain begins with the mix" % layer.number)


class _Reader:
    """Tensors below a prefix, on a device."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], prefix: str, device: str) -> None:
        self.tensors, self.prefix, self.device = tensors, prefix, device

    def __call__(self, name: str) -> torch.Tensor:
        return self.tensors[self.prefix + name].to(self.device).contiguous()

    def bytes(self, name: str) -> torch.Tensor:
        return self(name).view(torch.uint8)

    def fp8(self, *names: str) -> Fp8:
        """One matrix of the rows of all ``names``."""
        code, scale = (
            torch.cat([self.bytes(name + what) for name in names]) if len(names) > 1 else self.bytes(names[0] + what)
            for what in (".weight", ".scale")
        )
        return Fp8(code, scale)

    def site(self, name: str) -> Site:
        fn, base, scale = (self("hc_%s_%s" % (name, what)) for what in ("fn", "base", "scale"))
        return Site(pack_fn(fn), base, scale, self(name + "_norm.weight"))

    def experts(self, which: range) -> Experts:
        def stacked(*names: str, what: str) -> torch.Tensor:
            one = ["ffn.experts.%d.%s.%s" % (e, name, what) for e in which for name in names]
            rows = torch.stack([self.bytes(name) for name in one])
            return rows.reshape(len(which), -1, rows.shape[2])

        w13 = pack(stacked("w1", "w3", what="weight"), stacked("w1", "w3", what="scale"), gated=True)
        w2 = pack(stacked("w2", what="weight"), stacked("w2", what="scale"), gated=False)
        shared = "ffn.shared_experts."
        return Experts(
            gate=self("ffn.gate.weight"),
            bias=self("ffn.gate.bias"),
            image_bias=self("ffn.gate.bias_vl"),
            first=which.start,
            count=len(which),
            w13=w13,
            w2=w2,
            shared_w13=self.fp8(shared + "w1", shared + "w3"),
            shared_w2=self.fp8(shared + "w2"),
        )
