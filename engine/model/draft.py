"""The draft model: a block of tokens proposed at once from what the backbone's last layers saw.

*Absorb* writes keys made of the backbone's taps into the draft layers' windows, for every position that the backbone
processed. *Propose* runs a block of anchor and noise tokens that sees that window and, in both directions, itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from deepinfer.engine.model.block import block, first_mix
from deepinfer.engine.model.feed_forward import feed_forward
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text import TextModel
from deepinfer.engine.ops import mhc
from deepinfer.engine.ops.attention import attend
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.rope import rotate


@dataclass
class Proposal:
    """``tokens`` int64 [B], ``logits`` fp32 [B, V] that each was chosen from, ``confidence`` fp32 [B]."""

    tokens: torch.Tensor
    logits: torch.Tensor
    confidence: torch.Tensor


def greedy(logits: torch.Tensor) -> int:
    """The lowest id of the largest logit."""
    return int(logits.argmax())


class DraftModel:
    """The draft layers beside a :class:`TextModel`, whose embedding and head they share."""

    def __init__(self, text: TextModel) -> None:
        self.text = text
        self.config = text.config
        self.params = text.params
        self.count = self.config.num_nextn_predict_layers

    def absorb(self, taps: torch.Tensor, first: int, state: State) -> None:
        """Write the keys of ``taps`` [T, k, D] at positions ``first`` .. ``first + T - 1``."""
        config, params, attention = self.config, self.params, self.text.attention
        main = params.linear("mtp.0.main_proj", params.quantized_input(taps.flatten(1)))
        main = rms_norm(main, params["mtp.0.main_norm.weight"], config.rms_norm_eps)
        positions = torch.arange(first, first + taps.shape[0], device=taps.device)
        for number in range(self.count):
            keys = attention.window_keys("mtp.%d." % number, main, positions, attention.plain)
            state.write_window(config.num_hidden_layers + number, keys, positions)

    def propose(
        self,
        anchor: int,
        state: State,
        choose: Callable[[torch.Tensor], int] = greedy,
        *,
        temperature: float = 1.0,
    ) -> Proposal:
        """Drafts for positions P + 1 and on, where ``anchor`` is the token just chosen for position P of ``state``."""
        config, params = self.config, self.params
        size = config.dspark_block_size
        device = state.window.device
        ids = torch.full((size,), config.dspark_noise_token_id, dtype=torch.int64, device=device)
        ids[0] = anchor
        positions = torch.arange(state.length, state.length + size, device=device)
        streams = params["embed.weight"][ids].to(params.dtype).unsqueeze(1).repeat(1, config.hc_mult, 1)
        pre = first_mix(size, config.hc_mult, device)
        for number in range(self.count):
            prefix = "mtp.%d." % number
            attention = partial(self._attention, number, positions, state)
            streams, pre = block(params, config, prefix, streams, pre, attention, partial(self._experts, prefix))
        return self._read_out(mhc.collapse(streams, pre), anchor, choose, temperature)

    def _attention(self, number: int, positions: torch.Tensor, state: State, x: torch.Tensor) -> torch.Tensor:
        """Every row sees the last window of absorbed keys and the keys of the whole block."""
        config, attention, prefix = self.config, self.text.attention, "mtp.%d." % number
        _, query = attention.queries(prefix, x, positions, attention.plain)
        own = attention.window_keys(prefix, x, positions, attention.plain)
        before, _ = state.last_window(config.num_hidden_layers + number, config.sliding_window)
        keys = torch.cat([before, own])
        everything = torch.ones(x.shape[0], keys.shape[0], dtype=torch.bool, device=x.device)
        nothing = keys[:0]
        sink = self.params[prefix + "attn.attn_sink"]
        out = attend(query, keys, everything, nothing, everything[:, :0], sink)
        return attention.output(prefix, rotate(out, positions, attention.plain, inverse=True))

    def _experts(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        text_only = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        return feed_forward(self.params, self.config, prefix, x, text_only, self.config.dspark_num_experts_per_tok)

    def _read_out(
        self, hidden: torch.Tensor, anchor: int, choose: Callable[[torch.Tensor], int], temperature: float
    ) -> Proposal:
        """Logits of the shared head plus a low-rank term of the token before; confidence from the un-normed hidden."""
        config, params = self.config, self.params
        last = "mtp.%d." % (self.count - 1)
        base = self.text.logits(rms_norm(hidden, params[last + "norm.weight"], config.rms_norm_eps))
        head = wide(params[last + "markov_head.head.weight"])
        tokens, logits, confidence = [], [], []
        previous = anchor
        for row in range(hidden.shape[0]):
            before = params[last + "markov_head.embed.weight"][previous]
            logits.append(base[row] + head @ wide(before))
            both = torch.cat([wide(hidden[row]), wide(before)])
            score = both @ wide(params[last + "confidence_head.proj.weight"][0])
            confidence.append(torch.sigmoid(score / temperature))
            previous = choose(logits[-1])
            tokens.append(previous)
        return Proposal(torch.tensor(tokens, device=hidden.device), torch.stack(logits), torch.stack(confidence))
