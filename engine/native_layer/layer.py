"""The chain of launches of one backbone layer: hyper-connections, attention and experts of T tokens.

The same function as :func:`deepinfer.engine.model.block.block` with ``act_quant='fp8'`` and quantized caches, over the
release's own formats. Kernels are called through their registered ops. Where the output of one is not the input of
another, torch converts (:mod:`deepinfer.engine.native_layer.glue`); the bf16 projections of compressor and indexer are
torch matrix products, whose sums may change with T. All else is the same bits for a token whatever else is in the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.layout import Layer
from deepinfer.engine.native_layer import glue
from deepinfer.engine.native_layer.buffers import PAGE, Caches, Carry, Scratch, Step
from deepinfer.engine.native_layer.weights import Fp8, LayerWeights, Site

if TYPE_CHECKING:
    from deepinfer.engine.native_layer.launches import Launches
    from deepinfer.engine.ops.contract import Scalars


class NativeLayer:
    """``layer`` of a model with ``weights``; ``freqs`` fp32 [32] by kind, ``plain`` and ``long``, on the device.

    ``launches`` runs the steps. ``side``: a second stream for what does not hang on one another; the
    window row, compressor and index weights run beside the queries, the shared expert beside the routed ones.
    """

    def __init__(
        self,
        config: TextConfig,
        layer: Layer,
        weights: LayerWeights,
        freqs: dict[str, torch.Tensor],
        launches: Launches,
        side: torch.cuda.Stream | None = None,
    ) -> None:
        self.config, self.layer, self.weights = config, layer, weights
        self.kind = "long" if layer.ratio else "plain"
        self.freqs = freqs[self.kind]
        self.launches, self.side = launches, side
        self.eps = config.rms_norm_eps

    def __call__(self, before: Carry, after: Carry, step: Step, caches: Caches, scratch: Scratch) -> None:
        """This layer from ``before`` to ``after``, which may be the same one.

        Writes the tokens' rows to ``caches``, and what was selected to ``step``.
        """
        self.site(self.weights.attention_site, before.x, before, scratch.middle, scratch)
        self.attention(step, caches, scratch)
        self.site(self.weights.experts_site, scratch.attended, scratch.middle, after, scratch)
        self.experts(scratch, after.x)

    def site(self, site: Site, x: torch.Tensor, before: Carry, after: Carry, s: Scratch) -> None:
        """``x`` into the streams of ``before``; mix and streams to ``after``; normed input and its codes to scratch."""
        config = self.config
        given = {"x": x, "streams": before.streams, "post": before.post, "comb": before.comb, "pre": before.pre}
        given |= {"fn": site.fn, "base": site.base, "scale": site.scale, "weight": site.norm}
        found = {"new_streams": after.streams, "next_pre": after.pre, "next_post": after.post, "next_comb": after.comb}
        found |= {"y": s.y, "codes": s.y_code, "code_scales": s.y_scale, "partial": s.partial}
        scalars = {"iterations": config.hc_sinkhorn_iters, "eps": config.hc_eps, "norm_eps": self.eps}
        self.launches.op("mhc.boundary", given, found, scalars)

    def attention(self, step: Step, caches: Caches, s: Scratch) -> None:
        """Normed input in scratch -> ``s.attended``."""
        weights = self.weights.attention
        with self._beside():
            self.window_row(step, caches, s)
            if self.weights.compressor is not None:
                self.publish(step, caches, s)
            if self.weights.indexer is not None:
                self._mm("index weights", s.y, self.weights.indexer.weights_proj, s.head_weights)
        self.queries(step, s)
        self._join()
        if self.weights.indexer is not None:
            self.select(step, caches, s)
        self.attend(step, caches, s)
        self.quantize(s.heads.flatten(1), s.heads_code, s.heads_scale)
        self.linear(weights.wo_a, s.heads_code, s.heads_scale, s.groups, groups=self.config.o_groups)
        self.quantize(s.groups, s.groups_code, s.groups_scale)
        self.linear(weights.wo_b, s.groups_code, s.groups_scale, s.attended)

    def queries(self, step: Step, s: Scratch) -> None:
        """Rotated queries, and those of the index as codes."""
        weights, indexer = self.weights.attention, self.weights.indexer
        self.linear(weights.wq_a, s.y_code, s.y_scale, s.low_rank)
        given = {"x": s.low_rank, "weight": weights.q_norm}
        self.launches.op(
            "quantize_rows.normed_fp8", given, {"codes": s.low_code, "scales": s.low_scale}, {"eps": self.eps}
        )
        self.linear(weights.wq_b, s.low_code, s.low_scale, s.query.flatten(1))
        self.launches.op("rows.queries", self._turned(s.query, step), {}, {})
        if indexer is not None:
            self.linear(indexer.wq_b, s.low_code, s.low_scale, s.index_query.flatten(1))
            found = {"codes": s.index_code, "scales": s.index_scale}
            self.launches.op("rows.index_queries", self._turned(s.index_query, step), found, {})

    def window_row(self, step: Step, caches: Caches, s: Scratch) -> None:
        """The tokens' own rows into the ring of this layer."""
        weights = self.weights.attention
        self.linear(weights.wkv, s.y_code, s.y_scale, s.latent)
        given = {**self._turned(s.latent, step), "weight": weights.kv_norm, "slots": step.window_slots}
        self.launches.op("rows.window", given, {"cache": caches.window}, {"eps": self.eps})

    def publish(self, step: Step, caches: Caches, s: Scratch) -> None:
        """Entries and index keys of the tokens, ratio 1; the two projections are torch products."""
        weights = self.weights.compressor
        if weights is None or caches.entries is None or caches.pages is None:
            raise ValueError("layer %d is no source: it has no compressor, entries or index keys" % self.layer.number)
        self._mm("compressor", s.y, weights.wkv, s.entry)
        given = {**self._turned(s.entry, step), "weight": weights.norm, "slots": step.entry_slots}
        found = {"normed": s.entry_normed, "cache": caches.entries}
        self.launches.op("rows.entry", given, found, {"eps": self.eps})
        self._mm("index key", s.entry_normed, weights.wk, s.key)
        given = {**self._turned(s.key, step), "weight": weights.k_norm, "slots": step.entry_slots}
        self.launches.op("rows.index_key", given, {"cache": caches.pages}, {"eps": self.eps, "entries": PAGE})

    def select(self, step: Step, caches: Caches, s: Scratch) -> None:
        """The entries that each token attends: of all (and candidates), or of the candidates alone."""
        config = self.config
        if caches.pages is None:
            raise ValueError("layer %d has an indexer, and its caches have no index keys" % self.layer.number)
        given = {"query": s.index_code, "query_scale": s.index_scale, "weights": s.head_weights}
        given |= {"pages": caches.pages, "block_table": step.block_table}
        given |= {"sequence": step.sequence, "visible": step.visible}
        found = {"indices": step.chosen, "count": step.chosen_count}
        pick: Scalars = {"k": config.index_topk, "plan": 0}
        if self.layer.uses_candidates:
            given["candidates"] = step.candidates
            self.launches.op("indexer.candidates", given, {"out": s.candidate_scores}, {"page_entries": PAGE})
            scores = {"scores": s.candidate_scores, "visible": step.candidate_entries, "blocks": step.candidates}
            self.launches.op("topk.select", scores, found, pick)
        else:
            widths: Scalars = {"page_entries": PAGE, "positions": step.longest, "rows_together": 1}
            self.launches.op("indexer.dense", given, {"out": s.scores}, widths)
            scores = {"scores": s.scores, "visible": step.visible}
            if self.layer.is_candidate_source:
                blocks = {"blocks": step.candidates, "count": step.candidate_count, "entries": step.candidate_entries}
                self.launches.op(
                    "topk.candidate_blocks", scores, blocks, {"most": config.candidate_topk_blocks, "plan": 0}
                )
            self.launches.op("topk.select", scores, found, pick)
        self.launches.torch("places to rows", glue.pool_rows, step, s)

    def attend(self, step: Step, caches: Caches, s: Scratch) -> None:
        """Rotated queries over window rows and selected entries -> ``s.heads``."""
        entries = caches.entries if self.layer.ratio and caches.entries is not None else caches.window.new_zeros(0, 288)
        given = {"query": s.query, "window": caches.window, "window_rows": step.window_rows, "entries": entries}
        given |= {"entry_rows": step.entry_rows, "sink": self.weights.attention.sink}
        given |= {"counts": step.counts if self.layer.ratio else step.window_counts}
        given |= {"rotation": step.rotation[self.kind]}
        self.launches.op("attention.sparse", given, {"out": s.heads}, {})

    def experts(self, s: Scratch, out: torch.Tensor) -> None:
        """Normed input in scratch -> ``out`` bf16 [T, D]: this rank's routed experts and the shared one."""
        config, weights = self.config, self.weights.experts
        with self._beside():
            self.shared(s)
        given = {"x": s.y, "gate": weights.gate, "bias": weights.bias}
        slots = s.routing_slots[:-1].view(s.tokens, -1)
        found = {"work": s.logits, "ids": s.ids, "weights": slots, "offsets": s.offsets, "order": s.order}
        scalars: Scalars = {"k": config.num_experts_per_tok, "first": weights.first, "count": weights.count}
        self.launches.op("router.route", given, found, {**scalars, "scaling": config.routed_scaling_factor})
        codes = {"weight": s.y_code, "scale": s.y_scale}
        self.launches.op("dequant.fp8_block", codes, {"out": s.y_rounded[: s.tokens]}, {"block_rows": 1})
        self.launches.torch("rows by expert", glue.rows_by_expert, s, config.num_experts_per_tok)
        given = {"x": s.rows, "offsets": s.offsets, "flags": s.flags, "routing": s.routing}
        given |= {"weight": weights.w13.weight, "row_factor": weights.w13.row_factor}
        scalars = {"channels": config.moe_intermediate_size, "tile": 0}
        found = {"h": s.hidden, "sums": s.sums}
        self.launches.op("moe_gemm.w13", given, found, {**scalars, "limit": config.swiglu_limit})
        given = {"x": s.hidden, "offsets": s.offsets, "flags": s.flags}
        given |= {"weight": weights.w2.weight, "row_factor": weights.w2.row_factor}
        scalars = {"features": config.hidden_size, "tile": 0}
        self.launches.op("moe_gemm.w2", given, {"out": s.parts, "sums": s.sums}, scalars)
        self._join()
        positions = s.positions[:-1].view(s.tokens, -1)
        self.launches.op(
            "moe_gemm.combine", {"parts": s.parts, "positions": positions, "shared": s.shared}, {"out": out}, {}
        )

    def shared(self, s: Scratch) -> None:
        """The shared expert -> ``s.shared``."""
        weights = self.weights.experts
        self.linear(weights.shared_w13, s.y_code, s.y_scale, s.shared_both)
        self.launches.torch("SwiGLU", glue.shared_activation, s, self.config.swiglu_limit)
        self.quantize(s.shared_hidden, s.shared_code, s.shared_scale)
        self.linear(weights.shared_w2, s.shared_code, s.shared_scale, s.shared)

    def linear(
        self, weight: Fp8, code: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, *, groups: int = 1
    ) -> None:
        """FP8 rows times an FP8 matrix."""
        given = {"x_code": code, "x_scale": scale, "w_code": weight.code, "w_scale": weight.scale}
        self.launches.op("linear.fp8", given, {"y": out}, {"groups": groups, "plan": 0})

    def quantize(self, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """bf16 rows to FP8."""
        self.launches.op("quantize_rows.fp8", {"x": x}, {"codes": codes, "scales": scales}, {})

    def _mm(self, label: str, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """A bf16 product by torch."""
        self.launches.torch(label, torch.mm, x, weight.t(), out=out)

    def _turned(self, x: torch.Tensor, step: Step) -> dict[str, torch.Tensor]:
        return {"x": x, "positions": step.positions, "freqs": self.freqs}

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """What is launched within goes to the side stream, if there is one."""
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def _join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
