"""Which devices the visible-devices variables leave: numbers, UUIDs, unique UUID prefixes, MIG ids, empty and -1.

CUDA reads its list from the left and stops at the first entry that is none of these; the rest is as if not written.
"""

from __future__ import annotations

from deepinfer.probes.facts.device import Device


class Selection:
    """``indexes`` that stay visible, in order; ``stopped_at``: the entry where reading ended, or an empty string."""

    __slots__ = ("indexes", "partitions", "stopped_at")

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.partitions: list[str] = []  # UUIDs of the MIG slices that were named
        self.stopped_at = ""


def select(text: str, devices: list[Device]) -> Selection:
    """What ``text`` selects from ``devices``."""
    chosen = Selection()
    for word in (part.strip() for part in text.split(",")):
        index = _index_of(word, devices, chosen)
        if index is None or (index in chosen.indexes and not word.startswith("MIG-")):
            chosen.stopped_at = word or "(empty)"
            return chosen
        if index not in chosen.indexes:
            chosen.indexes.append(index)
    return chosen


def _index_of(word: str, devices: list[Device], chosen: Selection) -> int | None:
    if word.isdigit() and word.isascii():
        found = [device.index for device in devices if len(word) < 6 and device.index == int(word)]
        return found[0] if found else None
    if word.startswith("MIG-GPU-"):  # the old form: MIG-GPU-<uuid>/<gpu instance>/<compute instance>
        word = word[4:].partition("/")[0]
    if word.startswith("GPU-"):
        found = [device.index for device in devices if device.uuid.lower().startswith(word.lower())]
        return found[0] if len(found) == 1 else None
    if word.startswith("MIG-"):
        for device in devices:
            for _, uuid, _ in device.partitions:
                if uuid.lower() == word.lower():
                    chosen.partitions.append(uuid)
                    return device.index
    return None
