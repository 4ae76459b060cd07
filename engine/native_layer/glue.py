"""What torch does between two kernels, because the output of one is not yet the input of the other.

Elementwise and gather launches into buffers that exist: a graph captures them. docs/kernels/layer.md says what they
cost and which kernel should take each over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deepinfer.engine.native_layer.buffers import PAGE

if TYPE_CHECKING:
    from deepinfer.engine.native_layer.buffers import Scratch, Step


def pool_rows(step: Step, s: Scratch) -> None:
    """Selected places of a sequence to rows of the pool, and their number beside that of window rows.

    ``topk.select`` gives places with -1 behind the last; ``attention.sparse`` wants rows, and both counts in one list.
    """
    torch.bitwise_right_shift(step.chosen, PAGE.bit_length() - 1, out=s.page)
    s.page.clamp_(min=0)  # places of nothing: behind the count, never looked at
    torch.gather(step.first_rows, 1, s.page, out=s.page_row)
    torch.bitwise_and(step.chosen, PAGE - 1, out=s.within)
    torch.add(s.page_row, s.within, out=step.entry_rows)
    step.counts[:, 1].copy_(step.chosen_count)


def rows_by_expert(s: Scratch, choices: int) -> None:
    """Token rows and routing weights in the order of experts, and where each choice's row went (-1: another rank's).

    ``router.route`` gives the order, ``moe_gemm.w13`` wants the rows, ``moe_gemm.combine`` the places. Rows behind the
    last one of this rank stand for the row behind the last token, and nobody reads them.
    """
    none = s.order.shape[0]
    torch.remainder(s.order, none + 1, out=s.slot)  # -1 becomes the place behind the last
    torch.div(s.slot, choices, rounding_mode="floor", out=s.token)
    torch.index_select(s.y_rounded.view(torch.int64), 0, s.token, out=s.rows.view(torch.int64))
    torch.index_select(s.routing_slots, 0, s.slot, out=s.routing)
    s.positions.fill_(-1)
    s.positions.scatter_(0, s.slot, s.counting)


def shared_activation(s: Scratch, limit: float) -> None:
    """SwiGLU of the shared expert: ``silu(min(g, limit)) * clamp(u, -limit, limit)`` in fp32, rounded to bf16.

    ``moe_gemm.w13`` has it inside, for FP4 weights; the shared expert has FP8 weights.
    """
    inner = s.shared_hidden.shape[1]
    s.shared_wide.copy_(s.shared_both)
    gate, up = s.shared_wide[:, :inner], s.shared_wide[:, inner:]
    torch.nn.functional.silu(gate.clamp_(max=limit), inplace=True)
    torch.mul(gate, up.clamp_(-limit, limit), out=s.shared_hidden)
