"""Progress of long work on a terminal: one line on stderr, rewritten in place. Where stderr is no terminal, silence."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, total, what is at hand
_SECONDS = 0.1  # between two writes: a terminal is slow
_CELLS = 24


class Bar:
    """``Bar("loading")(done, total, what)``; the line is ended when ``done`` reaches ``total``."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.monotonic()
        self.last = float("-inf")

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if done < total and now - self.last < _SECONDS:
            return
        self.last = now
        share = min(done / total, 1.0) if total else 1.0
        filled = int(share * _CELLS)
        bar = "#" * filled + "." * (_CELLS - filled)
        end = "\n" if done >= total else ""
        line = "%s [%s] %3d %% %.1f s %s" % (self.label, bar, 100 * share, now - self.start, what)
        width = shutil.get_terminal_size().columns - 1  # a line that wraps is not rewritten in place
        sys.stderr.write("\r%-*.*s%s" % (width, width, line, end))
        sys.stderr.flush()


def bar(label: str) -> Progress | None:
    """A :class:`Bar` if stderr is a terminal, else None."""
    return Bar(label) if sys.stderr.isatty() else None
