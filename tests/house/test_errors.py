"""Every error that a user can meet has one code, a line in docs/errors.md, and a fix."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tree import ROOT, files, parsed, python_files

CODE = re.compile(r"DI\d{3}")


def source_codes() -> list[tuple[str, str]]:
    """(code, place) of every error class, and of the messages that no class can carry (shell, ancient interpreters)."""
    found = []
    for path in python_files():
        if path.parts[0] == "tests":
            continue
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            for line in node.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                    found.append((ast.literal_eval(line.value), f"{path}:{line.lineno}"))
    return found


def test_every_code_belongs_to_one_class() -> None:
    twice = [code for code, count in Counter(code for code, _ in source_codes()).items() if count > 1]
    assert not twice, [place for code, place in source_codes() if code in twice]


def test_every_error_class_has_a_code_and_says_what_it_is() -> None:
    for path in python_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and any("DeepInferError" in ast.unparse(base) for base in node.bases):
                names = [ast.unparse(line.targets[0]) for line in node.body if isinstance(line, ast.Assign)]
                assert path.parts[0] == "tests" or "code" in names, f"{path}:{node.lineno}: no code"
                assert path.parts[0] == "tests" or ast.get_docstring(node), f"{path}:{node.lineno}: no docstring"


def test_docs_list_the_codes_of_the_source_and_no_others() -> None:
    table = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| DI")
    ]
    assert all(len(row) == 3 and all(row) for row in rows), "every row: code, meaning, fix"
    listed = [row[0] for row in rows]
    assert listed == sorted(set(listed)), "sorted, each once"
    used = {code for code, _ in source_codes()}
    for path in files():
        if (path.suffix in (".py", ".sh") or path.name == "CMakeLists.txt") and path.parts[0] != "tests":
            used |= set(CODE.findall((ROOT / path).read_text(encoding="utf-8")))
    used -= {"DI000"}  # the base class; never raised itself
    assert set(listed) == used, f"missing: {sorted(used - set(listed))}, unknown: {sorted(set(listed) - used)}"


def test_the_base_error_prints_code_reason_and_fix() -> None:
    from deepinfer.errors import UsageError

    text = str(UsageError("what", why="reason", fix="command"))
    assert text == "DI001: what\n  why: reason\n  fix: command"
