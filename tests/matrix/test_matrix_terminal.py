"""``matrix list``: drawn on a terminal, plain in a pipe, and plain where rich is missing."""

from __future__ import annotations

import io
import json
import sys

import pytest

from deepinfer.matrix.load import ROOT
from deepinfer.matrix.show import list_text
from deepinfer.matrix.terminal import write_list

INDEX = json.loads((ROOT / "matrix/index.json").read_text(encoding="utf-8"))


class Terminal(io.StringIO):
    """Text that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_a_pipe_gets_plain_text():
    pipe = io.StringIO()
    write_list(INDEX, pipe)
    assert pipe.getvalue() == list_text(INDEX)


def test_a_terminal_gets_a_table_with_every_entry(terminal):
    pytest.importorskip("rich")
    write_list(INDEX, terminal)
    text = terminal.getvalue()
    assert "─" in text and "\x1b[" in text
    assert [entry["id"] for entry in INDEX["entries"] if entry["id"] not in text] == []
    lines = text.splitlines()
    supported = next(line for line in lines if "nvidia-sm100" in line)
    draft = next(line for line in lines if "nvidia-sm90" in line)
    assert "\x1b[32m" in supported and "\x1b[32m" not in draft


@pytest.mark.parametrize("value", ["1", ""])
def test_no_color_means_none(terminal, monkeypatch, value):
    pytest.importorskip("rich")
    monkeypatch.setenv("NO_COLOR", value)
    write_list(INDEX, terminal)
    assert "─" in terminal.getvalue() and "\x1b" not in terminal.getvalue()


def test_a_narrow_terminal_loses_nothing(terminal, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "72")
    write_list(INDEX, terminal)
    assert all(entry["id"] in terminal.getvalue() for entry in INDEX["entries"])


def test_brackets_are_no_markup(terminal):
    pytest.importorskip("rich")
    entry = {**INDEX["entries"][0], "title": "[bold]x[/bold] [/oops]"}
    write_list({**INDEX, "entries": [entry]}, terminal)
    assert "[bold]x[/bold] [/oops]" in terminal.getvalue()


def test_without_rich_it_is_plain_text(terminal, monkeypatch):
    for name in ("rich", "rich.box", "rich.console", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    write_list(INDEX, terminal)
    assert terminal.getvalue() == list_text(INDEX)
