"""The attention half of a backbone block: window keys, compressed keys, index, selection, grouped low-rank output."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.layout import Layer
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.ops import selection
from deepinfer.engine.ops.attention import attend, window_mask
from deepinfer.engine.ops.compressor import pair_up
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.quantizers import qdq_fp4_16, qdq_fp4_32, qdq_fp8_32
from deepinfer.engine.ops.rope import frequencies, rotate


@dataclass
class Forward:
    """What lives inside one forward only: selections and candidates that later layers reuse.

    ``positions`` int64 [T] of the rows still computed, ``end`` the length after the forward, ``published`` the sources
    whose entries are written.
    """

    positions: torch.Tensor
    end: int
    published: set[int] = field(default_factory=set)
    selected: dict[int, torch.Tensor] = field(default_factory=dict)
    candidates: torch.Tensor | None = None


class TextAttention:
    """Attention of every backbone layer. ``kv_quant`` False leaves keys unrounded, for comparisons."""

    def __init__(self, config: TextConfig, params: Parameters, *, kv_quant: bool) -> None:
        self.config = config
        self.params = params
        self.kv_quant = kv_quant
        width = config.qk_rope_head_dim
        self.plain = frequencies(width, config.rope_theta)
        yarn = config.rope_scaling.numbers() if config.rope_scaling else None
        self.long = frequencies(width, config.compress_rope_theta, yarn)

    def __call__(self, layer: Layer, x: torch.Tensor, state: State, run: Forward) -> torch.Tensor:
        """``x`` [T, D] (normed) at the positions of ``run`` -> [T, D]; writes this layer's caches."""
        prefix = "layers.%d." % layer.number
        freqs = self.long if layer.ratio else self.plain
        low_rank, query = self.queries(prefix, x, run.positions, freqs)
        own = self.window_keys(prefix, x, run.positions, freqs)
        before, before_positions = state.last_window(layer.number, self.config.sliding_window - 1)
        keys = torch.cat([before, own])
        key_positions = torch.cat([before_positions, run.positions])
        state.write_window(layer.number, own, run.positions)
        if layer.owns_kv:
            self.publish(layer, x, state, run)
        if layer.kv_source is None:
            entries = keys.new_zeros(0, keys.shape[1])
            chosen = torch.zeros(x.shape[0], 0, dtype=torch.bool, device=x.device)
        else:
            if layer.owns_index:
                self._select(layer, prefix, x, low_rank, state, run)
            chosen = run.selected[layer.index_source or 0]
            entries = state.entries[layer.kv_source][: chosen.shape[1]]
        mask = window_mask(run.positions, key_positions, self.config.sliding_window)
        mask = mask & (key_positions >= state.first(layer.number))
        out = attend(query, keys, mask, entries, chosen, self.params[prefix + "attn.attn_sink"])
        return self.output(prefix, rotate(out, run.positions, freqs, inverse=True))

    def queries(
        self, prefix: str, x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed low-rank vector [T, q_lora], rotated queries [T, H, hd])."""
        config, params = self.config, self.params
        low_rank = rms_norm(
            params.linear(prefix + "attn.wq_a", params.quantized_input(x)),
            params[prefix + "attn.q_norm.weight"],
            config.rms_norm_eps,
        )
        query = params.linear(prefix + "attn.wq_b", params.quantized_input(low_rank))
        return low_rank, rotate(query.view(-1, config.num_attention_heads, config.head_dim), positions, freqs)

    def window_keys(self, prefix: str, x: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        """Keys that are also values, [T, hd], as the window cache holds them."""
        latent = self.params.linear(prefix + "attn.wkv", self.params.quantized_input(x))
        return self.window_entry(prefix, latent, positions, freqs)

    def window_entry(
        self, prefix: str, latent: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor
    ) -> torch.Tensor:
        """Norm, rotation and rounding of a projected latent."""
        normed = rms_norm(latent, self.params[prefix + "attn.kv_norm.weight"], self.config.rms_norm_eps)
        keys = rotate(normed, positions, freqs)
        return qdq_fp8_32(keys) if self.kv_quant else keys

    def output(self, prefix: str, heads: torch.Tensor) -> torch.Tensor:
        """Grouped low-rank output projection: [T, H, hd] -> [T, D]."""
        config, params = self.config, self.params
        groups = params.quantized_input(heads.flatten(1)).reshape(heads.shape[0], config.o_groups, -1)
        weight = params[prefix + "attn.wo_a.weight"].to(heads.dtype)
        weight = weight.reshape(config.o_groups, config.o_lora_rank, -1)
        middle = torch.einsum("tgi,goi->tgo", groups, weight).flatten(1)
        return params.linear(prefix + "attn.wo_b", params.quantized_input(middle))

    def publish(self, layer: Layer, x: torch.Tensor, state: State, run: Forward) -> None:
        """Append the entries and index keys of the groups that the rows ``x`` [T, D] of this forward complete, once."""
        config, params, number = self.config, self.params, layer.number
        if number in run.published:
            return
        run.published.add(number)
        prefix = "layers.%d." % number
        name = prefix + "attn.compressor."
        start, end = state.length // layer.ratio, (state.length + x.shape[0]) // layer.ratio
        if layer.ratio == 1:
            latent = params.linear(name + "wkv", x)
        else:
            latent = self._open_groups(name, x, state, number, run.positions)[: end - start].to(x.dtype)
        latent = rms_norm(latent, params[name + "norm.weight"], config.rms_norm_eps)
        places = torch.arange(start, end, device=x.device) * layer.ratio
        index = params.linear(prefix + "attn.indexer.wk", latent)
        index = rms_norm(index, params[prefix + "attn.indexer.k_norm.weight"], config.rms_norm_eps)
        index, entry = rotate(index, places, self.long), rotate(latent, places, self.long)
        state.index_keys[number][start:end] = qdq_fp4_32(index) if self.kv_quant else index
        state.entries[number][start:end] = qdq_fp4_16(entry) if self.kv_quant else entry

    def _open_groups(
        self, name: str, x: torch.Tensor, state: State, number: int, positions: torch.Tensor
    ) -> torch.Tensor:
        """fp32 latents of the complete pairs, the pair that an earlier chunk began included; remembers the inputs."""
        gates, values = self.params.wide(name + "wgate", x), self.params.wide(name + "wkv", x)
        ring_gates, ring_values, ring = state.open_gates[number], state.open_values[number], state.group_ring
        if state.length % 2:
            slot = (state.length - 1) % ring
            all_gates = torch.cat([ring_gates[slot : slot + 1], gates])
            all_values = torch.cat([ring_values[slot : slot + 1], values])
        else:
            all_gates, all_values = gates, values
        slots = positions[-ring:] % ring
        ring_gates[slots], ring_values[slots] = gates[-ring:], values[-ring:]
        whole = all_gates.shape[0] // 2 * 2
        return pair_up(all_gates[:whole], all_values[:whole])

    def _select(
        self, layer: Layer, prefix: str, x: torch.Tensor, low_rank: torch.Tensor, state: State, run: Forward
    ) -> None:
        """The entries that each query attends, for this layer and those that reuse its choice."""
        config, params = self.config, self.params
        source = layer.kv_source if layer.kv_source is not None else layer.number
        count = run.end // layer.ratio
        visible = (run.positions + 1) // layer.ratio
        allowed = selection.below(visible, count)
        query = params.linear(prefix + "attn.indexer.wq_b", params.quantized_input(low_rank))
        query = rotate(query.view(-1, config.index_n_heads, config.index_head_dim), run.positions, self.long)
        query = qdq_fp4_32(query) if self.kv_quant else query
        weights = params.linear(prefix + "attn.indexer.weights_proj", x)
        score = selection.scores(query, state.index_keys[source][:count], weights)
        if layer.is_candidate_source:
            run.candidates = selection.candidate_blocks(
                score, visible, config.candidate_block_size, config.candidate_topk_blocks
            )
        elif layer.uses_candidates and run.candidates is not None:
            allowed = allowed & run.candidates
        run.selected[layer.number] = selection.top_k(score, allowed, config.index_topk)
