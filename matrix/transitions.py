"""How a status may move: one step at a time, never back."""

from __future__ import annotations

STEPS: dict[str, tuple[str, ...]] = {
    "draft": ("accepted", "rejected", "withdrawn"),
    "accepted": ("supported", "rejected", "withdrawn"),
    "supported": ("deprecated",),
    "deprecated": ("removed",),
    "removed": (),
    "rejected": (),
    "withdrawn": (),
}
# A neighbor that nobody proposed becomes a draft; the founding entries began as what upstream says they are.
FIRST = "draft"
APPROVED = ("accepted", "supported", "deprecated", "removed", "rejected")  # steps that somebody else agrees to


def may_move(old: str | None, new: str) -> bool:
    """Whether an entry may go from ``old`` (None: it was not there) to ``new`` in one change."""
    if old == new or old is None:
        return old == new or new in (FIRST, "unsupported")
    if old == "unsupported":
        return new == FIRST
    return new in STEPS.get(old, ())


def next_steps(status: str) -> str:
    """The steps from ``status`` in words."""
    steps = (FIRST,) if status == "unsupported" else STEPS.get(status, ())
    return " or ".join(steps) or "nothing: a new RFC begins again"
