"""Reads the evidence of a tree: every file below matrix/evidence/, the good and the bad."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.matrix.evidence_form import KEYS, NAME, canonical, digest_of, file_name, form_problems
from deepinfer.matrix.findings import Finding

FOLDER = "matrix/evidence"
KEPT = (".gitkeep", "README.md")
GATES = ("probe", "build", "conformance", "smoke", "bench")  # those that evidence closes
_REDO = "run the attest command again; evidence is never edited"
# What would tell which machine or person it was. The writer masks; this is the second lock.
IDENTIFIERS = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}"
    r"|(?<![\w.-])/(?:home|Users|root)(?:/|\b)"
    r"|(?<![\w.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\w.])"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
)


class Evidence(NamedTuple):
    """One file. ``data`` is empty if it has not the form; ``findings`` are what is wrong with it by itself."""

    path: str
    data: dict[str, Any]
    findings: list[Finding]

    @property
    def counts(self) -> bool:
        """Whether anything may rest on it."""
        return not self.findings and bool(self.data)


def read_all(root: Path, entries: list[str]) -> list[Evidence]:
    """All evidence below ``root``; ``entries`` are the ids that exist."""
    folder = root / FOLDER
    names = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in KEPT)
    return [_read(root, path.relative_to(root).as_posix(), entries) for path in names if path.suffix != ".sig"]


def _read(root: Path, name: str, entries: list[str]) -> Evidence:
    found: list[Finding] = []

    def say(rule: str, message: str, fix: str = _REDO, line: int = 1) -> None:
        found.append(Finding(name, line, rule, message, fix))

    try:
        text = (root / name).read_text(encoding="utf-8")
        data = json.loads(text)
        digest = digest_of(data) if isinstance(data, dict) else ""
    except (OSError, ValueError, RecursionError) as error:
        say("R13", "not JSON: %s" % error)
        return Evidence(name, {}, found)
    if not digest or data.get("digest") != digest:
        # A changed byte is one thing that is wrong, whatever else it broke.
        say("R14", "its digest is not that of its content: it was changed, or cut, after it was written")
        return Evidence(name, {}, found)
    problems = form_problems(data, KEYS)
    if problems:
        say("R13", problems[0] + (" (and %d more)" % (len(problems) - 1) if problems[1:] else ""))
        return Evidence(name, {}, found)
    if text != canonical(data):
        say("R13", "not in canonical form (sorted keys, two blanks of indent, ASCII)")
    _check_place(name, data, entries, say)
    if data["dirty"]:
        say("R16", "it comes from a tree with changes that were not committed", "commit, then run attest again")
    _check_outcome(data, say)
    match = IDENTIFIERS.search(text)
    if match:
        line = text.count("\n", 0, match.start()) + 1
        say("R19", "it holds what looks like an identifier of a host or a person", line=line)
    return Evidence(name, data, found)


def _check_place(name: str, data: dict[str, Any], entries: list[str], say: Any) -> None:
    match = NAME.fullmatch(name.rpartition("/")[2])
    if data["gate"] not in GATES:
        say("R15", "no gate is called %r that evidence closes" % data["gate"])
    elif data["entry"] not in entries:
        say("R15", "no entry is called %r" % data["entry"], "move it to the entry that it is about, by a new run")
    elif match is None or name != "%s/%s" % (FOLDER, file_name(data)):
        say("R15", "by its content it is %s" % file_name(data), "give it back its name: evidence serves nothing else")


def _check_outcome(data: dict[str, Any], say: Any) -> None:
    outcomes = [check["outcome"] for check in data["checks"]]
    passed = "pass" in outcomes and "fail" not in outcomes
    if (data["outcome"] == "pass") != passed:
        say("R18", "outcome %r is not what its checks say" % data["outcome"])
