"""Which layer owns what: derived once from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.checkpoint.config import TextConfig


@dataclass(frozen=True)
class Layer:
    """Roles of one backbone layer. ``kv_source`` and ``index_source`` are layer ids, or None for window-only layers."""

    number: int
    ratio: int
    kv_source: int | None
    index_source: int | None
    owns_kv: bool
    owns_index: bool
    is_candidate_source: bool
    uses_candidates: bool
    engram: int | None  # which table
    tap: bool


def layers(config: TextConfig) -> list[Layer]:
    """The backbone, in order."""
    found = []
    candidate = config.candidate_source_layer_id
    for number in range(config.num_hidden_layers):
        ratio = config.compress_ratios[number]
        kv = max((i for i in config.kv_source_layer_ids if i <= number), default=None) if ratio else None
        index = max((i for i in config.index_source_layer_ids if i <= number), default=None) if ratio else None
        owns_index = number in config.index_source_layer_ids
        found.append(
            Layer(
                number=number,
                ratio=ratio,
                kv_source=kv,
                index_source=index,
                owns_kv=number in config.kv_source_layer_ids,
                owns_index=owns_index,
                is_candidate_source=candidate is not None and number == candidate,
                uses_candidates=candidate is not None and owns_index and number > candidate,
                engram=config.engram_layer_ids.index(number) if number in config.engram_layer_ids else None,
                tap=number in config.dspark_target_layer_ids,
            )
        )
    return found
