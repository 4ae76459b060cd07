"""``resolve``: the one place that decides what a build is for. The report prints it and the build obeys it."""

from __future__ import annotations

from deepinfer.probes.judge import judge
from deepinfer.probes.verdict import ELIGIBLE, Verdict
from deepinfer.probes.view import HostView
from deepinfer.probes.wish import ConflictingTarget, Wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Target:
    """What to build and with what. Only where ``allowed`` is True may anything be compiled."""

    __slots__ = ("architectures", "cross", "entry", "toolchain", "verdict")

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.entry = verdict.entry
        self.toolchain = verdict.toolchain
        self.architectures: list[str] = list(verdict.entry["architectures"]) if verdict.entry else []
        self.cross = verdict.cross

    @property
    def allowed(self) -> bool:
        return self.verdict.verdict == ELIGIBLE and self.entry is not None


def resolve(view: HostView, index: dict[str, Any], wish: Wish) -> Target:
    """The target that ``wish`` names, else the one that the host's devices say.

    Raises :class:`ConflictingTarget` if the devices say two. A target that may not be built is returned with the
    verdict that says why.
    """
    verdict = judge(view, index, wish, aspect="build")
    if not wish.target and len(verdict.eligible_entries) > 1:
        raise ConflictingTarget(
            "this host has devices of %s" % " and ".join(verdict.eligible_entries),
            fix="name one: pip install . -C deepinfer.target=%s" % verdict.eligible_entries[0],
        )
    return Target(verdict)
