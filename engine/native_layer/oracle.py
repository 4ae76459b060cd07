"""The torch model of one layer over the same weights and caches, with the chain's discrete choices put in.

:func:`deepinfer.engine.model.block.block` in bf16 with FP8 inputs of linears and quantized caches: the same rounding
points as the kernels have, other orders of sums. Choices (experts, entries, candidate blocks) hang on rounding where
scores are close, so they are compared as sets, and those of the chain are then used for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.checkpoint.inventory import scale_name
from deepinfer.engine.model.block import block
from deepinfer.engine.model.feed_forward import feed_forward
from deepinfer.engine.model.layout import Layer
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text_attention import Forward, TextAttention
from deepinfer.engine.native_layer.buffers import PAGE, Caches, Carry, Step
from deepinfer.engine.ops import mhc, moe
from deepinfer.engine.ops.dequant import fp4_reference, fp8_reference
from deepinfer.engine.ops.indexer import unpack
from deepinfer.engine.ops.sparse_mla import entry_values, window_values


class SliceParameters(Parameters):
    """Parameters of a rank: routed experts that it does not have add nothing."""

    widths: tuple[int, int]  # of hidden layer and output of an expert

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], config: TextConfig) -> SliceParameters:
        """Dequantized to bf16, which holds every value of FP8 and FP4 weights exactly."""
        found = {}
        for name, tensor in tensors.items():
            if name.endswith(".scale"):
                continue
            if scale_name(name) in tensors:
                given = {"weight": tensor, "scale": tensors[scale_name(name)]}
                routed = ".experts." in name
                wide = fp4_reference(given, {}) if routed else fp8_reference(given, {"block_rows": 32})
                tensor = wide["out"].bfloat16()
            found[name] = tensor
        params = cls(found, torch.bfloat16, "fp8")
        params.widths = (config.moe_intermediate_size, config.hidden_size)
        return params

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Zeros for an expert of another rank."""
        if ".experts." in name and name + ".weight" not in self.tensors:
            return x.new_zeros(x.shape[0], self.widths[name.endswith("w2")])
        return super().linear(name, x)


@dataclass
class Choices:
    """``experts`` int64 [T, k] in order of choice; ``entries`` and ``candidates`` bool [T, N], or None."""

    experts: torch.Tensor
    entries: torch.Tensor | None
    candidates: torch.Tensor | None


@dataclass
class Outcome:
    """``attended`` and ``x`` [T, D]: outputs of the two halves; ``streams`` [T, n, D] and ``pre`` [T, n] after both.

    ``window``, ``entries``, ``keys``: the rows that were written for the tokens, as numbers, where the layer has them.
    ``own``: the choices that the model itself makes. ``candidates`` of it is None where the layer makes none.
    """

    attended: torch.Tensor
    x: torch.Tensor
    streams: torch.Tensor
    pre: torch.Tensor
    window: torch.Tensor
    entries: torch.Tensor | None
    keys: torch.Tensor | None
    own: Choices


class _Attention(TextAttention):
    """Makes its own selection, keeps it aside, and goes on with the one that is given."""

    given: torch.Tensor | None = None
    own: torch.Tensor | None = None

    def _select(
        self, layer: Layer, prefix: str, x: torch.Tensor, low_rank: torch.Tensor, state: State, run: Forward
    ) -> None:
        super()._select(layer, prefix, x, low_rank, state, run)
        self.own = run.selected[layer.number]
        if self.given is not None:
            run.selected[layer.number] = self.given


def expanded(carry: Carry) -> torch.Tensor:
    """Streams with the last sub-layer's output in them, bf16 [T, n, D]."""
    return mhc.expand(carry.x, carry.streams, carry.post, carry.comb)


def mask(places: torch.Tensor, count: int) -> torch.Tensor:
    """bool [T, count] of int [T, S] places, negative: none."""
    found = torch.zeros(places.shape[0], count + 1, dtype=torch.bool, device=places.device)
    found.scatter_(1, torch.where(places < 0, count, places.long()), True)
    return found[:, :count]


def key_values(pages: torch.Tensor) -> torch.Tensor:
    """fp64 [pages * 128, 128] of packed index keys."""
    codes = pages[:, : 64 * PAGE].reshape(-1, 64)
    values, scales = unpack(codes, pages[:, 64 * PAGE : 68 * PAGE].reshape(-1, 4))
    return (values * scales[..., None]).flatten(-2)


class Oracle:
    """``layer`` in torch, ``params`` as :class:`SliceParameters`."""

    def __init__(self, config: TextConfig, layer: Layer, params: SliceParameters) -> None:
        self.config, self.layer, self.params = config, layer, params
        self.attention = _Attention(config, params, kv_quant=True)
        self.prefix = "layers.%d." % layer.number

    def __call__(
        self, carry: Carry, step: Step, caches: Caches, choices: Choices, attended: torch.Tensor | None = None
    ) -> Outcome:
        """The layer for every token, each alone with its sequence. ``caches`` as they are, nothing is written.

        ``attended`` bf16 [T, D]: the first half's output that the second goes on with; None: the one computed here.
        """
        tokens = range(step.positions.shape[0])
        states = [self._state(t, step, caches) for t in tokens]
        runs = [self._run(t, step, choices) for t in tokens]
        kept: dict[str, torch.Tensor] = {}
        own: list[torch.Tensor] = []

        def attend(x: torch.Tensor) -> torch.Tensor:
            parts = []
            for t in tokens:
                self.attention.given = None
                if choices.entries is not None:
                    self.attention.given = choices.entries[t : t + 1, : runs[t].end]
                parts.append(self.attention(self.layer, x[t : t + 1], states[t], runs[t]))
                if self.attention.own is not None:
                    own.append(torch.nn.functional.pad(self.attention.own[0], (0, step.longest - runs[t].end)))
            kept["attended"] = torch.cat(parts)
            return kept["attended"] if attended is None else attended

        def experts(x: torch.Tensor) -> torch.Tensor:
            kept["x"], kept["ids"] = self._experts(x, choices)
            return kept["x"]

        streams, pre = block(self.params, self.config, self.prefix, expanded(carry), carry.pre, attend, experts)
        number, source = self.layer.number, self.layer.number if self.layer.owns_kv else None
        places = step.positions.tolist()
        candidates = [run.candidates for run in runs if run.candidates is not None]
        found = Choices(kept["ids"], torch.stack(own) if own else None, None)
        if self.layer.is_candidate_source:
            wide = [torch.nn.functional.pad(one[0], (0, step.longest - one.shape[1])) for one in candidates]
            found.candidates = torch.stack(wide)
        return Outcome(
            attended=kept["attended"],
            x=kept["x"],
            streams=streams,
            pre=pre,
            window=torch.stack([states[t].window[number, p % states[t].ring] for t, p in enumerate(places)]),
            entries=None if source is None else torch.stack([s.entries[source][-1] for s in states]),
            keys=None if source is None else torch.stack([s.index_keys[source][-1] for s in states]),
            own=found,
        )

    def _experts(self, x: torch.Tensor, choices: Choices) -> tuple[torch.Tensor, torch.Tensor]:
        """(output, the experts that the model itself would choose)."""
        config, name = self.config, self.prefix + "ffn.gate.bias"
        bias = self.params[name]
        ids, _ = moe.route(x, self.params[self.prefix + "ffn.gate.weight"], bias, config.num_experts_per_tok, 1.0)
        # In the choice alone, so that it is the given one in the given order.
        rank = 1e6 - 1e4 * torch.arange(ids.shape[1], device=x.device, dtype=torch.float32)
        self.params.tensors[name] = bias.repeat(x.shape[0], 1).scatter(1, choices.experts, rank.expand_as(ids))
        image = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        out = feed_forward(self.params, config, self.prefix, x, image, config.num_experts_per_tok)
        self.params.tensors[name] = bias
        return out, ids

    def _run(self, token: int, step: Step, choices: Choices) -> Forward:
        end = int(step.positions[token]) + 1
        run = Forward(step.positions[token : token + 1], end)
        if choices.entries is not None and self.layer.index_source is not None:
            run.selected[self.layer.index_source] = choices.entries[token : token + 1, :end]
        if choices.candidates is not None and self.layer.uses_candidates:
            run.candidates = choices.candidates[token : token + 1, :end]
        return run

    def _state(self, token: int, step: Step, caches: Caches) -> State:
        """The token's sequence as the model keeps it, from the packed caches."""
        position, sequence = int(step.positions[token]), int(step.sequence[token])
        device = caches.window.device
        state = State(self.config, position + 1, dtype=torch.bfloat16, device=device)
        state.length = position
        rows = caches.window[sequence * state.ring : (sequence + 1) * state.ring]
        state.window[self.layer.number] = window_values(rows).bfloat16()
        if self.layer.kv_source is not None and caches.entries is not None and caches.pages is not None:
            pages = step.block_table[sequence, : position // PAGE + 1].long()
            entries = caches.entries.view(-1, PAGE, caches.entries.shape[1])[pages].flatten(0, 1)
            state.entries[self.layer.kv_source][:] = entry_values(entries[: position + 1]).bfloat16()
            state.index_keys[self.layer.kv_source][:] = key_values(caches.pages[pages])[: position + 1].bfloat16()
        return state
