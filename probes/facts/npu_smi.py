"""Parsers of npu-smi's output: its tables by their header (three layouts), the board page, the mapping page.

910B and 310P print two lines a chip in three columns, A3 the same with two dies a card, 950 gives the NPU id a
column of its own. ``-c`` is rejected on 950, and its mapping has no "Chip Logic ID".
"""

from __future__ import annotations

import re

from deepinfer.probes.facts.versions import whole_number
from deepinfer.probes.redact import excerpt
from deepinfer.probes.view import key_values

_PAIR = r"(\d+)\s*/\s*(\d+)"
_HEALTH = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")
_VERSION = r"npu-smi\s+(\S+)\s+Version:"


class Row:
    """One chip of ``npu-smi info``. ``memory_bytes`` is HBM, or DDR where the table has no HBM column."""

    __slots__ = ("bus", "health", "memory_bytes", "name", "npu")

    def __init__(self, npu: int, name: str, health: str) -> None:
        self.npu = npu
        self.name = name
        self.health = health
        self.bus = ""
        self.memory_bytes: int | None = None


def parse_info(text: str) -> list[Row] | None:
    """The chips, in order. None if this is no table of chips (an error text, another tool, garbage)."""
    if "Health" not in text or "Bus-Id" not in text:
        return None
    rows: list[Row] = []
    current: Row | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            current = current if line.startswith("+-") else None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        head = _first_line(cells)
        if head:
            current = head
            rows.append(head)
        elif current is not None and len(cells) >= 3:
            _second_line(cells, current)
            current = None
    return rows


def _first_line(cells: list[str]) -> Row | None:
    if len(cells) == 4 and cells[2] in _HEALTH:  # 950
        number, name, health = cells[0], cells[1], cells[2]
    elif len(cells) == 3 and cells[1] in _HEALTH:
        number, _, name = cells[0].partition(" ")
        health = cells[1]
    else:
        return None
    name = name.strip()
    npu = whole_number(number)
    if npu is None or not name or " " in name or name.isdigit():
        return None
    return Row(npu, name, health)


def _second_line(cells: list[str], row: Row) -> None:
    bus = cells[-2]
    row.bus = bus.lower() if ":" in bus else ""
    pairs = re.findall(_PAIR, cells[-1])
    if pairs:  # the last pair is HBM where there is such a column, else the memory
        total = whole_number(pairs[-1][1])
        row.memory_bytes = total << 20 if total else None


def parse_version(text: str) -> str:
    match = re.search(_VERSION, text)
    return match.group(1) if match else ""


def soc_of_board(text: str) -> str:
    """SoC name from ``-t board``: ``Ascend950PR_9579``, ``Ascend910B3``, ``A2G3``; empty if the page names no chip."""
    values = key_values(text, ":")
    chip, npu, kind = values.get("Chip Name", ""), values.get("NPU Name", ""), values.get("Chip Type", "")
    if not chip or chip.upper() == "NA":
        return ""
    if npu and npu.upper() != "NA":
        return "%s_%s" % (chip, npu)
    return kind + chip if kind == "Ascend" and not chip.startswith("Ascend") else chip


def mismatched(text: str) -> bool:
    """Does the board page say that driver and firmware do not belong together?"""
    return key_values(text, ":").get("Compatibility") == "NOK"


def parse_mapping(text: str) -> list[dict[str, str]]:
    """Rows of ``npu-smi info -m`` by column name; the Mcu (management) rows are left out."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell for cell in re.split(r"\s{2,}", line.strip()) if cell]
        if "Chip Name" in cells:
            names = cells
        elif names and len(cells) == len(names):
            row = dict(zip(names, cells))
            if row["Chip Name"] != "Mcu":
                # 950 has no logic id column: there the NPU id is the logic id
                row.setdefault("Chip Logic ID", row.get("NPU ID", ""))
                rows.append(row)
    return rows


def rows_of_mapping(text: str) -> list[Row]:
    """The chips of the mapping page: no health, no bus, no memory there."""
    rows = []
    for row in parse_mapping(text):
        npu = whole_number(row.get("NPU ID", ""))
        if npu is not None:
            rows.append(Row(npu, row["Chip Name"], ""))
    return rows


_FAILURES = (
    ("no npu card", "npu-smi finds no card", "start the container with the card's device nodes, or reseat the card"),
    ("-8005", "the driver is not loaded, or this user may not use it", "load the driver, or join group HwHiAiUser"),
    ("-8020", "another container holds the cards", "stop that container, or give this one other cards"),
    (
        "error while loading shared libraries",
        "npu-smi's libraries are not in this image",
        "mount /usr/local/dcmi and /usr/local/Ascend/driver/lib64 into the container",
    ),
)


def explain_failure(rc: int, text: str) -> tuple[str, str]:
    """(reason, fix) of a failing npu-smi."""
    lowered = text.lower()
    for needle, reason, fix in _FAILURES:
        if needle in lowered:
            return reason, fix
    return "npu-smi ended with %d: %s" % (rc, excerpt(text)), "run npu-smi info and read its message"
