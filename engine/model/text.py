"""The text backbone: streams, Engram, attention and experts of every layer, final norm and head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.checkpoint.primes import table_primes
from deepinfer.engine.model.block import block, first_mix
from deepinfer.engine.model.feed_forward import feed_forward
from deepinfer.engine.model.layout import Layer, layers
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.replay import bounded
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text_attention import Forward, TextAttention
from deepinfer.engine.ops import engram, mhc
from deepinfer.engine.ops.dequant import e4m3_values
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.precision import wide


@dataclass
class Output:
    """``hidden`` [T, D]: after the final norm. ``taps`` [T, k, D]: stream means that the draft model reads.

    Compact replay leaves out the rows of both that it did not compute; the last row is the last token's.
    """

    hidden: torch.Tensor
    taps: torch.Tensor


class TextModel:
    """DeepSeek-V4.1-Flash without vision and drafts. Stateless: what a request carries is in its :class:`State`.

    ``token_map`` int64 [vocabulary]: token id -> compressed id; ids at or above its length count as image tokens.
    """

    def __init__(
        self,
        config: TextConfig,
        params: Parameters,
        token_map: torch.Tensor,
        *,
        kv_quant: bool = True,
        replay: str = "off",
        keep: int | None = None,
    ) -> None:
        self.config = config
        self.params = params
        self.token_map = token_map
        self.layers = layers(config)
        self.replay = bounded(config, replay, keep)
        self.attention = TextAttention(config, params, kv_quant=kv_quant)
        sizes = config.engram_max_ngram_size
        self.primes = table_primes(len(config.engram_layer_ids), sizes, config.engram_n_heads, config.engram_vocab_size)
        self.factors = [
            engram.multipliers(number, config.engram_compressed_vocab_size, sizes) for number in config.engram_layer_ids
        ]
        self.codes = e4m3_values().float()

    def forward(self, ids: torch.Tensor, state: State, embedded: torch.Tensor | None = None) -> Output:
        """Process ``ids`` int64 [T] at positions P .. P + T - 1; ``state`` then stands at P + T.

        ``embedded`` [M, D]: one row for each of the M ids outside the vocabulary (an image's), in order.
        """
        config, params = self.config, self.params
        if state.length + ids.shape[0] > state.capacity:
            raise ValueError("%d tokens do not fit a state of %d" % (state.length + ids.shape[0], state.capacity))
        positions = torch.arange(state.length, state.length + ids.shape[0], device=ids.device)
        image = ids >= self.token_map.shape[0]
        inside = ids.clamp_max(config.vocab_size - 1)
        x = params["embed.weight"][inside].to(params.dtype)
        if embedded is not None:
            x[ids >= config.vocab_size] = embedded.to(x.dtype)
        streams = x.unsqueeze(1).repeat(1, config.hc_mult, 1)
        pre = first_mix(ids.shape[0], config.hc_mult, ids.device)
        compressed = torch.where(image, 0, self.token_map[ids.clamp_max(self.token_map.shape[0] - 1)])
        run, seen = Forward(positions, state.length + ids.shape[0]), image
        taps = []
        for layer in self.layers:
            if layer.number == config.prefill_layers and self.replay.mode == "compact":
                streams, pre, seen = self._drop(layer, streams, pre, seen, state, run)
                if not len(seen):
                    break
            if layer.engram is not None:
                streams = self._engram(layer, streams, compressed, image, state)
            if layer.tap:
                taps.append(wide(streams).mean(1).to(streams.dtype))
            attention = partial(self.attention, layer, state=state, run=run)
            experts = partial(self._experts, "layers.%d." % layer.number, seen)
            streams, pre = block(params, config, "layers.%d." % layer.number, streams, pre, attention, experts)
        state.write_ids(compressed, image)
        state.length += ids.shape[0]
        hidden = rms_norm(mhc.collapse(streams, pre), params["norm.weight"], config.rms_norm_eps)
        width = len(config.dspark_target_layer_ids)
        tapped = torch.stack(taps, dim=1) if taps else hidden.new_zeros(hidden.shape[0], width, config.hidden_size)
        return Output(hidden, tapped)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 [T, vocabulary] of the rows that are needed."""
        return wide(hidden) @ self.params["head.weight"].to(wide(hidden).dtype).T

    def _drop(
        self, layer: Layer, streams: torch.Tensor, pre: torch.Tensor, image: torch.Tensor, state: State, run: Forward
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write the entries of ``layer`` for every row, then go on with those from ``state.kept_from`` on."""
        count = min(max(0, state.kept_from - state.length), streams.shape[0])
        if count:
            norm = self.params["layers.%d.attn_norm.weight" % layer.number]
            x = rms_norm(mhc.collapse(streams, pre), norm, self.config.rms_norm_eps)
            self.attention.publish(layer, x, state, run)
            run.positions = run.positions[count:]
        return streams[count:], pre[count:], image[count:]

    def _experts(self, prefix: str, image: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return feed_forward(self.params, self.config, prefix, x, image, self.config.num_experts_per_tok)

    def _engram(
        self, layer: Layer, streams: torch.Tensor, compressed: torch.Tensor, image: torch.Tensor, state: State
    ) -> torch.Tensor:
        config, params = self.config, self.params
        table = layer.engram or 0
        prefix = "layers.%d.engram." % layer.number
        before, before_dead = state.last_ids()
        ids, dead = torch.cat([before, compressed]), torch.cat([before_dead, image])
        pad = int(self.token_map[config.engram_pad_token_id])
        rows = engram.rows(ids, dead, state.history, pad, self.factors[table], self.primes[table])
        looked_up = self._rows(prefix, rows).to(params.dtype)
        out = params.linear(prefix + "wkv", looked_up).reshape(-1, config.hc_mult + 1, config.hidden_size)
        weight = wide(params[prefix + "q_weight"]) * wide(params[prefix + "k_weight"])
        return engram.inject(streams, out[:, :-1], out[:, -1], weight, image, config.rms_norm_eps)

    def _rows(self, prefix: str, rows: torch.Tensor) -> torch.Tensor:
        """fp32 [T, rows * width]: the packed rows, decoded; one power-of-two scale per row and 32 columns."""
        table, scales = self.params[prefix + "embed.weight"], self.params[prefix + "embed.scale"]
        places = rows.to(table.device)  # host memory may hold the table: only its rows travel
        codes, exponents = table[places].to(rows.device), scales[places].to(rows.device)
        scale = torch.exp2(exponents.float() - 127.0).repeat_interleave(32, -1)
        return (self.codes.to(rows.device)[codes.long()] * scale).flatten(1)
