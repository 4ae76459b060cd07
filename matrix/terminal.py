"""The list of entries as a table for a person at a terminal; plain text where ``rich``, which draws it, is missing."""

from __future__ import annotations

import os
from typing import Any, TextIO

from deepinfer.matrix.blocks import in_order, needs
from deepinfer.matrix.show import list_text
from deepinfer.matrix.vocabulary import ACCELERATED, PROPOSED

_HEAD = ("entry", "status", "rfc", "engine", "toolkit", "device")


def write_list(index: dict[str, Any], stream: TextIO) -> None:
    """A drawn table on a terminal, the plain one in a pipe: cut and grep want no lines and no color."""
    if not (stream.isatty() and _draw(index, stream)):
        stream.write(list_text(index))


def _draw(index: dict[str, Any], stream: TextIO) -> bool:
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    # rich obeys TERM=dumb and the width; its own reading of NO_COLOR would leave bold and dim. Any value counts.
    plain = "NO_COLOR" in os.environ
    console = Console(file=stream, highlight=False, no_color=plain)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="" if plain else "bold", padding=(0, 2, 0, 0))
    for name in _HEAD:
        table.add_column(name, overflow="fold", no_wrap=name in ("entry", "status", "rfc"))
    for entry in in_order(index):
        rfc = "-" if entry["rfc"] is None else str(entry["rfc"])
        cells = (entry["id"], entry["status"], rfc, entry["engine"], needs(entry).replace("`", ""), entry["title"])
        # As Text, since brackets in a plain string would be taken for markup.
        styles = ["" if plain else _style(name, entry["status"]) for name in _HEAD]
        table.add_row(*(Text(cell, style=style) for cell, style in zip(cells, styles, strict=True)))
    console.print(table)
    return True


def _style(column: str, status: str) -> str:
    if column == "entry":
        return "bold"
    if column != "status":
        return ""
    if status in ACCELERATED:
        return "green"
    return "yellow" if status in PROPOSED else "dim"
