"""What a chain of kernels left, and how far it is from the torch model of the same layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.native_layer.buffers import Caches, Carry, Scratch, Step
from deepinfer.engine.native_layer.layer import NativeLayer
from deepinfer.engine.native_layer.oracle import Choices, Oracle, Outcome, key_values, mask
from deepinfer.engine.ops.sparse_mla import entry_values, window_values


@dataclass
class Seen:
    """See :class:`deepinfer.engine.native_layer.oracle.Outcome`, of which these are the chain's own."""

    attended: torch.Tensor
    x: torch.Tensor
    streams: torch.Tensor
    pre: torch.Tensor
    window: torch.Tensor
    entries: torch.Tensor
    keys: torch.Tensor
    choices: Choices


@dataclass
class Found:
    """Errors by name: of a whole layer, ``free``; and with the second half of both on the chain's first, ``halves``."""

    free: dict[str, float]
    halves: dict[str, float]


def observe(native: NativeLayer, carry: Carry, step: Step, caches: Caches, scratch: Scratch) -> Seen:
    """Read the results right after a layer. Overwrites scratch: the streams are expanded by a further site."""
    config, layer = native.config, native.layer
    attended, ids = scratch.attended.clone(), scratch.ids.long()
    after = Carry.empty(scratch.tokens, config, scratch.device)
    native.site(native.weights.experts_site, carry.x, carry, after, scratch)
    blocks = step.candidates.long()[..., None] * config.candidate_block_size
    places = blocks + torch.arange(config.candidate_block_size, device=blocks.device)
    places = torch.where(places < step.visible[:, None, None], places, -1).flatten(1)
    seen_entries = caches.entries if caches.entries is not None else caches.window.new_zeros(1, 288)
    pages = caches.pages if caches.pages is not None else caches.window.new_zeros(1, 128 * 68)
    slots = step.entry_slots
    one = torch.arange(slots.shape[0], device=slots.device)
    return Seen(
        attended=attended,
        x=carry.x.clone(),
        streams=after.streams,
        pre=carry.pre.clone(),
        window=window_values(caches.window[step.window_slots]),
        entries=entry_values(seen_entries[slots]),
        keys=key_values(pages[slots // 128]).view(slots.shape[0], 128, -1)[one, slots % 128],
        choices=Choices(
            ids,
            mask(step.chosen, step.longest) if layer.ratio else None,
            mask(places, step.longest) if layer.ratio else None,
        ),
    )


def against(native: NativeLayer, oracle: Oracle, carry: Carry, step: Step, caches: Caches, scratch: Scratch) -> Found:
    """Run the layer on copies of ``carry`` and ``caches`` and compare; what it selects stays in ``step``."""
    after, written = Carry.empty(scratch.tokens, native.config, scratch.device), caches.clone()
    native(carry, after, step, written, scratch)
    seen = observe(native, after, step, written, scratch)
    free = differences(seen, oracle(carry, step, caches, seen.choices))
    return Found(free, differences(seen, oracle(carry, step, caches, seen.choices, seen.attended)))


def differences(seen: Seen, wanted: Outcome) -> dict[str, float]:
    """Relative L2 errors of every output, and the share of the model's own choices that the chain made too."""
    found = {
        name: relative(getattr(seen, name), getattr(wanted, name))
        for name in ("attended", "x", "streams", "pre", "window", "entries", "keys")
        if getattr(wanted, name) is not None
    }
    same = (seen.choices.experts[:, :, None] == wanted.own.experts[:, None, :]).any(-1)
    found["experts agree"] = float(same.double().mean())
    for name in ("entries", "candidates"):
        own, ours = getattr(wanted.own, name), getattr(seen.choices, name)
        if own is not None:
            found[name + " agree"] = float((own & ours).sum() / own.sum())
    return found


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """L2 norm of the difference over that of what is wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
