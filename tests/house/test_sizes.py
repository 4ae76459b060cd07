"""Small files, small functions, plain names, no assert for what a user can cause."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tree import PACKAGES, ROOT, files, parsed, python_files

FILE_LINES = 500
FUNCTION_LINES = 50
BANNED = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
LOCAL = ("/home/", "/work/", "/tmp/", "/Users/")


@pytest.mark.parametrize("path", [p for p in files() if p.suffix in (".py", ".sh", ".toml", ".md")], ids=str)
def test_file_is_not_too_long(path: Path) -> None:
    count = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert count <= FILE_LINES, f"{path} has {count} lines; split it by concept"


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_functions_are_not_too_long(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            assert count <= FUNCTION_LINES, f"{path}:{node.lineno}: {node.name} has {count} lines"


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] not in ("tests",)], ids=str)
def test_no_bare_assert_outside_tests(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        assert not (isinstance(node, ast.Assert) and node.msg is None), (
            f"{path}:{node.lineno}: raise an error with a fix"
        )


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] not in ("tests",)], ids=str)
def test_no_exception_is_swallowed(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            assert not silent, f"{path}:{node.lineno}: an except that only passes"
            assert node.type is not None, f"{path}:{node.lineno}: name the exception"


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_names_say_what_is_inside(path: Path) -> None:
    assert path.parts[0] in PACKAGES, f"{path}: unknown top folder"
    assert not BANNED & {part.removesuffix(".py") for part in path.parts}, f"{path}: name it after its concept"


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] not in ("tests", "bench")], ids=str)
def test_public_functions_are_annotated(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert node.returns is not None, f"{path}:{node.lineno}: {node.name} has no return annotation"


@pytest.mark.parametrize("path", [p for p in files() if p.suffix in (".md", ".toml")], ids=str)
def test_no_path_of_one_machine_in_texts(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not [place for place in LOCAL if f" {place}" in text or f"`{place}" in text], path
