"""What the caller of a layer owns: the streams, one forward's lists, the caches, and scratch memory.

All of it is allocated once, for one number of tokens. A layer reads and writes it in place, so that a captured graph
may be replayed on new contents.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.model.state import BACKTRACK
from deepinfer.engine.ops import mhc_fused, moe_gemm, router
from deepinfer.engine.ops.sparse_mla import ENTRY_BYTES, WINDOW_BYTES, rotation_table

PAGE = 128  # tokens, and so entries of ratio 1, of a page
GROUP = 32  # channels of an FP8 scale
INDEX_BYTES = 68  # of an index key


@dataclass
class Carry:
    """What one layer hands to the next: its last sub-layer's output ``x`` bf16 [T, D], not yet in the streams.

    ``streams`` bf16 [T, n, D]; ``pre`` fp32 [T, n], ``post`` fp32 [T, n] and ``comb`` fp32 [T, n, n]: the mix of the
    last site. The next site expands ``x`` into the streams.
    """

    x: torch.Tensor
    streams: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor

    @classmethod
    def empty(cls, tokens: int, config: TextConfig, device: str) -> Carry:
        """Zeros."""
        n, width = config.hc_mult, config.hidden_size
        return cls(
            x=torch.zeros(tokens, width, dtype=torch.bfloat16, device=device),
            streams=torch.zeros(tokens, n, width, dtype=torch.bfloat16, device=device),
            pre=torch.zeros(tokens, n, device=device),
            post=torch.zeros(tokens, n, device=device),
            comb=torch.zeros(tokens, n, n, device=device),
        )

    def clone(self) -> Carry:
        """A copy in memory of its own."""
        return Carry(self.x.clone(), self.streams.clone(), self.pre.clone(), self.post.clone(), self.comb.clone())

    @classmethod
    def first(cls, streams: torch.Tensor, pre: torch.Tensor) -> Carry:
        """Before a first site: ``streams`` as they are, since nothing is added to them."""
        tokens, n, width = streams.shape
        return cls(
            x=streams.new_zeros(tokens, width),
            streams=streams.clone(),
            pre=pre.clone(),
            post=pre.new_zeros(tokens, n),
            comb=torch.eye(n, device=streams.device).expand(tokens, n, n).contiguous(),
        )


@dataclass
class Caches:
    """``window`` uint8 [rows, 528], rings of this layer; ``entries`` uint8 [rows, 288] and ``pages`` uint8 [P, S]
    (index keys) of its source. Page i has entries 128 i onwards. None for a layer that attends its window alone.
    """

    window: torch.Tensor
    entries: torch.Tensor | None = None
    pages: torch.Tensor | None = None

    def clone(self) -> Caches:
        """A copy in memory of its own."""
        entries, pages = (None if pool is None else pool.clone() for pool in (self.entries, self.pages))
        return Caches(self.window.clone(), entries, pages)

    @staticmethod
    def window_rows(sequences: int, config: TextConfig) -> int:
        """How many rows the rings of ``sequences`` take."""
        return sequences * (config.sliding_window + BACKTRACK)


@dataclass
class Step:
    """One forward of T tokens, the same for all layers; index layers write ``candidates`` to ``entry_rows``.

    ``positions`` int64 [T]; ``sequence`` int32 [T] of each token; ``visible`` int32 [T] entries that it sees;
    ``block_table`` int32 [B, M] pages; ``first_rows`` int32 [T, M] pool row of the first entry of each page of a
    token's sequence; ``window_slots`` and ``entry_slots`` int64 [T] rows that are written; ``window_rows`` int32
    [T, W] rows that are seen; ``window_counts`` int32 [T, 2] of layers without entries, ``counts`` of those with;
    ``rotation`` fp32 [T, 64] by kind of frequencies: ``plain``, ``long``. ``longest``: entries that any token may see.
    """

    positions: torch.Tensor
    sequence: torch.Tensor
    visible: torch.Tensor
    block_table: torch.Tensor
    first_rows: torch.Tensor
    window_slots: torch.Tensor
    entry_slots: torch.Tensor
    window_rows: torch.Tensor
    window_counts: torch.Tensor
    counts: torch.Tensor
    rotation: dict[str, torch.Tensor]
    longest: int
    candidates: torch.Tensor
    candidate_count: torch.Tensor
    candidate_entries: torch.Tensor
    entry_rows: torch.Tensor
    chosen: torch.Tensor
    chosen_count: torch.Tensor

    @classmethod
    def of(
        cls,
        positions: torch.Tensor,
        sequence: torch.Tensor,
        block_table: torch.Tensor,
        config: TextConfig,
        freqs: dict[str, torch.Tensor],
    ) -> Step:
        """The lists of tokens at ``positions`` int64 [T] of ``sequence`` int32 [T], entries of ratio 1 in pages.

        Every token of a sequence sees those before it. Allocates: done once per forward, ahead of all layers.
        """
        device, tokens = positions.device, positions.shape[0]
        ring, width = config.sliding_window + BACKTRACK, config.sliding_window
        seen = positions[:, None] - torch.arange(width - 1, -1, -1, device=device)
        rows = sequence[:, None].long() * ring + seen.clamp_min(0) % ring
        first_rows = block_table.index_select(0, sequence.long()) * PAGE
        here = first_rows.gather(1, (positions // PAGE)[:, None])[:, 0].long()
        counts = torch.zeros(tokens, 2, dtype=torch.int32, device=device)
        counts[:, 0] = width

        def empty(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            positions=positions,
            sequence=sequence,
            visible=(positions + 1).int(),
            block_table=block_table,
            first_rows=first_rows.contiguous(),
            window_slots=sequence.long() * ring + positions % ring,
            entry_slots=here + positions % PAGE,
            window_rows=torch.where(seen >= 0, rows, -1).int(),
            window_counts=counts,
            counts=counts.clone(),
            rotation={name: rotation_table(positions, table) for name, table in freqs.items()},
            longest=block_table.shape[1] * PAGE,
            candidates=empty(tokens, config.candidate_topk_blocks),
            candidate_count=empty(tokens),
            candidate_entries=empty(tokens),
            entry_rows=empty(tokens, config.index_topk),
            chosen=empty(tokens, config.index_topk),
            chosen_count=empty(tokens),
        )


class Scratch:
    """Memory between the launches of a layer: T tokens, ``longest`` entries that one may see, ``experts`` of a rank.

    Every layer may use the same. :class:`deepinfer.engine.native_layer.layer.NativeLayer` says what is where.
    """

    def __init__(self, tokens: int, longest: int, experts: int, config: TextConfig, device: str) -> None:
        self.tokens, self.device = tokens, device
        width, heads = config.hidden_size, config.num_attention_heads * config.head_dim
        middle = config.o_groups * config.o_lora_rank
        self.middle = Carry.empty(tokens, config, device)
        self.partial = self._fp32(tokens, *mhc_fused.PARTIAL)
        self.y = self._bf16(tokens, width)
        # One row more: the place of rows that this rank does not have.
        self.y_code, self.y_scale = self._fp8(width)
        self.y_rounded = self._bf16(tokens + 1, width)  # what the codes stand for; the last row stays zero
        self.low_rank = self._bf16(tokens, config.q_lora_rank)
        self.low_code, self.low_scale = self._fp8(config.q_lora_rank)
        self.query = self._bf16(tokens, config.num_attention_heads, config.head_dim)
        self.latent = self._bf16(tokens, config.head_dim)
        self.entry = self._bf16(tokens, config.head_dim)
        self.entry_normed = self._bf16(tokens, config.head_dim)
        self.key = self._bf16(tokens, config.index_head_dim)
        self.index_query = self._bf16(tokens, config.index_n_heads, config.index_head_dim)
        self.index_code = self._bytes(tokens, config.index_n_heads, config.index_head_dim // 2)
        self.index_scale = self._bytes(tokens, config.index_n_heads, config.index_head_dim // GROUP)
        self.head_weights = self._bf16(tokens, config.index_n_heads)
        self.scores = self._fp32(tokens, longest)
        self.candidate_scores = self._fp32(tokens, config.candidate_topk_blocks * config.candidate_block_size)
        self.page = self._empty((tokens, config.index_topk), torch.int64)
        self.within = self._empty((tokens, config.index_topk), torch.int32)
        self.page_row = self._empty((tokens, config.index_topk), torch.int32)
        self.heads = self._bf16(tokens, config.num_attention_heads, config.head_dim)
        self.heads_code, self.heads_scale = self._fp8(heads)
        self.groups = self._bf16(tokens, middle)
        self.groups_code, self.groups_scale = self._fp8(middle)
        self.attended = self._bf16(tokens, width)
        self.offsets = self._empty((experts + 1,), torch.int32)
        self._experts(config, width)

    def _experts(self, config: TextConfig, width: int) -> None:
        tokens, k, inner = self.tokens, config.num_experts_per_tok, config.moe_intermediate_size
        rows = tokens * k
        self.logits = self._fp32(router.parts(tokens, width), tokens, config.n_routed_experts)
        self.ids = self._empty((tokens, k), torch.int32)
        self.routing_slots = self._fp32(rows + 1)
        self.order = self._empty((rows,), torch.int32)
        self.slot = self._empty((rows,), torch.int64)
        self.token = self._empty((rows,), torch.int64)
        self.counting = torch.arange(rows, dtype=torch.int32, device=self.device)
        self.positions = self._empty((rows + 1,), torch.int32)
        self.rows = self._bf16(rows, width)
        self.routing = self._fp32(rows)
        self.hidden = self._bf16(rows, inner)
        room = moe_gemm.room(self.device)
        self.sums, self.flags = room["sums"], room["flags"]
        self.parts = self._bf16(rows, width)
        self.shared_both, self.shared_wide = self._bf16(tokens, 2 * inner), self._fp32(tokens, 2 * inner)
        self.shared_hidden = self._bf16(tokens, inner)
        self.shared_code, self.shared_scale = self._fp8(inner)
        self.shared = self._bf16(tokens, width)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _bf16(self, *shape: int) -> torch.Tensor:
        return self._empty(shape, torch.bfloat16)

    def _fp32(self, *shape: int) -> torch.Tensor:
        return self._empty(shape, torch.float32)

    def _bytes(self, *shape: int) -> torch.Tensor:
        return self._empty(shape, torch.uint8)

    def _fp8(self, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._bytes(self.tokens, channels), self._bytes(self.tokens, channels // GROUP)


def entry_pool(pages: int, device: str) -> torch.Tensor:
    """uint8 [rows, 288] of ``pages`` pages of entries of ratio 1."""
    return torch.zeros(pages * PAGE, ENTRY_BYTES, dtype=torch.uint8, device=device)


def index_pool(pages: int, device: str) -> torch.Tensor:
    """uint8 [pages, bytes]: the codes of a page's index keys, then their scales."""
    return torch.zeros(pages, PAGE * INDEX_BYTES, dtype=torch.uint8, device=device)


def window_pool(rows: int, device: str) -> torch.Tensor:
    """uint8 [rows, 528] of window rows."""
    return torch.zeros(rows, WINDOW_BYTES, dtype=torch.uint8, device=device)
