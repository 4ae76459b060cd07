"""What a request carries from one forward to the next, in buffers that the caller allocates once.

At length P: per layer the last window of keys (a ring), per key-value source the entries and index keys of complete
groups, the open group of ratio-2 sources, and the last compressed token ids. Nothing else: prefill in any chunks,
decode and rewinding by at most ``backtrack`` tokens are the same function.
"""

from __future__ import annotations

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.layout import layers

BACKTRACK = 6  # five drafts and the token before them


class State:
    """Buffers of one request. ``length`` is P, the number of tokens processed.

    ``kept_from``: with bounded replay the first position that layers from ``config.prefill_layers`` on have keys of.
    """

    def __init__(
        self,
        config: TextConfig,
        capacity: int,
        *,
        backtrack: int = BACKTRACK,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        self.config = config
        self.capacity = capacity
        self.backtrack = backtrack
        self.length = 0
        self.furthest = 0  # of the lengths that a rewind left behind
        self.kept_from = 0
        self.ring = config.sliding_window + backtrack
        count = config.num_hidden_layers + config.num_nextn_predict_layers
        self.window = torch.zeros(count, self.ring, config.head_dim, dtype=dtype, device=device)
        self.entries: dict[int, torch.Tensor] = {}
        self.index_keys: dict[int, torch.Tensor] = {}
        self.open_gates: dict[int, torch.Tensor] = {}
        self.open_values: dict[int, torch.Tensor] = {}
        self.group_ring = 2 + max(0, backtrack - 1)
        for layer in layers(config):
            if not layer.owns_kv:
                continue
            places = capacity // layer.ratio
            self.entries[layer.number] = torch.zeros(places, config.head_dim, dtype=dtype, device=device)
            self.index_keys[layer.number] = torch.zeros(places, config.index_head_dim, dtype=dtype, device=device)
            if layer.ratio == 2:
                shape = (self.group_ring, config.head_dim)
                exact = torch.promote_types(dtype, torch.float32)
                self.open_gates[layer.number] = torch.zeros(shape, dtype=exact, device=device)
                self.open_values[layer.number] = torch.zeros(shape, dtype=exact, device=device)
        self.history = config.engram_max_ngram_size - 1
        self.id_ring = self.history + backtrack
        self.ids = torch.zeros(self.id_ring, dtype=torch.int64, device=device)
        self.dead = torch.ones(self.id_ring, dtype=torch.bool, device=device)

    def first(self, layer: int) -> int:
        """The first position that the window of backbone or draft layer ``layer`` may hold."""
        return self.kept_from if layer >= self.config.prefill_layers else 0

    def last_window(self, layer: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys [A, hd], positions int64 [A]) of the last ``count`` tokens before P, fewer at the start."""
        start = min(self.length, max(self.first(layer), self.length - count))
        positions = torch.arange(start, self.length, device=self.window.device)
        return self.window[layer, positions % self.ring], positions

    def write_window(self, layer: int, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Keep the newest ``ring`` of the keys [T, hd], none before the first position."""
        if self.first(layer):
            kept = positions >= self.first(layer)
            keys, positions = keys[kept], positions[kept]
        keys, positions = keys[-self.ring :], positions[-self.ring :]
        self.window[layer, positions % self.ring] = keys

    def last_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(compressed ids, dead) of the ``history`` places before P; places before the start are dead."""
        positions = torch.arange(self.length - self.history, self.length, device=self.ids.device)
        slots = positions % self.id_ring
        return self.ids[slots], self.dead[slots] | (positions < 0)

    def write_ids(self, ids: torch.Tensor, dead: torch.Tensor) -> None:
        """Append the T newest compressed ids at positions P .. P + T - 1."""
        positions = torch.arange(self.length, self.length + ids.shape[0], device=self.ids.device)[-self.id_ring :]
        self.ids[positions % self.id_ring] = ids[-self.id_ring :]
        self.dead[positions % self.id_ring] = dead[-self.id_ring :]

    def rewind(self, length: int) -> None:
        """Forget the tokens from ``length`` on: at most ``backtrack`` back from the furthest that was written."""
        self.furthest = max(self.furthest, self.length)
        if not 0 <= length <= self.length or self.furthest - length > self.backtrack:
            what = (self.length, length, self.furthest, self.backtrack)
            raise ValueError("cannot rewind from %d to %d: %d were written, and backtrack is %d" % what)
        self.length = length
