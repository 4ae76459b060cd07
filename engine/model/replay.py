"""Bounded replay: prefill runs the layers from the first of ratio 1 on only for the last rows of a prompt.

Those layers read the compressed entries that their first layer writes for every token; beside them a row needs only its
window, and of that decode reads the last rows. The first kept rows miss a part of their window: an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.checkpoint.config import TextConfig
from deepinfer.engine.checkpoint.config_rules import truncation_problems
from deepinfer.engine.checkpoint.errors import raise_for
from deepinfer.engine.model.state import BACKTRACK, State
from deepinfer.errors import UsageError

MODES = ("off", "mask", "compact")


@dataclass(frozen=True)
class Replay:
    """``mask`` runs every row and narrows windows, for comparisons; ``compact`` drops the rows before the kept ones."""

    mode: str = "off"
    keep: int = 0

    def prepare(self, state: State, prompt: int) -> None:
        """Say that ``state``, still empty, will take a prompt of ``prompt`` tokens."""
        if self.mode == "off":
            return
        if state.length:
            raise ValueError("the state already holds %d tokens" % state.length)
        if self.keep < state.ring:
            raise ValueError("%d kept tokens; decode and rewinding read %d" % (self.keep, state.ring))
        state.kept_from = max(0, prompt - self.keep)


def bounded(config: TextConfig, mode: str, keep: int | None = None) -> Replay:
    """The replay of these names. ``keep`` None: the window and twice what a state takes back, 140 as released.

    Raises :class:`UsageError` for a mode or a ``keep`` that cannot be, and what a configuration that forbids it raises.
    """
    if mode not in MODES:
        raise UsageError("replay is %r" % mode, fix="one of %s" % ", ".join(MODES))
    if mode == "off":
        return Replay()
    raise_for(truncation_problems(config))
    least = config.sliding_window + BACKTRACK
    if keep is None:
        keep = least + BACKTRACK
    if keep < least:
        raise UsageError("replay keeps %d tokens" % keep, fix="%d or more: the window and %d" % (least, BACKTRACK))
    return Replay(mode, keep)
