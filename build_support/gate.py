"""The gate: before anything is downloaded or compiled, is this build one that can ever work?

A refusal is ``SystemExit`` with the probe's own report: front ends print it without a traceback.
"""

from __future__ import annotations

from deepinfer.errors import DeepInferError
from deepinfer.matrix.index import load_index
from deepinfer.probes.judge import BUILT
from deepinfer.probes.live import LiveView
from deepinfer.probes.report import text
from deepinfer.probes.resolve import Target, resolve
from deepinfer.probes.wish import entry_by_id, read_wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def before_requirements(settings: dict[str, Any] | None) -> None:
    """Gate of the ``get_requires_for_*`` hooks, the first that a front end calls.

    A target that is named (``-C deepinfer.target``, ``DEEPINFER_ACCELERATOR``) is judged here by its status alone:
    ``pip download`` calls the same hook to fetch for another machine, whose compiler nobody can see from here. Its
    toolchain is judged before the build.
    """
    _guarded(settings, status_only=True)


def before_build(settings: dict[str, Any] | None) -> Target:
    """Gate of ``build_wheel`` and ``build_editable``: the target, with the toolchain that was judged."""
    target = _guarded(settings, status_only=False)
    if target is None:
        raise SystemExit("DI070: the gate gave no target\n  fix: report it")
    return target


def machine() -> str:
    """Processor that is built for: this one."""
    return str(LiveView().machine().value)


def _guarded(settings: dict[str, Any] | None, *, status_only: bool) -> Target | None:
    try:
        return _decide(settings or {}, status_only=status_only)
    except DeepInferError as error:
        raise SystemExit(str(error)) from None


def _decide(settings: dict[str, Any], *, status_only: bool) -> Target | None:
    index = load_index()
    view = LiveView()
    wish = read_wish(view, index, settings)
    if status_only and wish.target and entry_by_id(wish.target, index)["status"] in (*BUILT, "reference"):
        return None
    target = resolve(view, index, wish)
    if not target.allowed:
        raise SystemExit(text(target.verdict, index))
    return target
