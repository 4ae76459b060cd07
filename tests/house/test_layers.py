"""Imports go one way, old interpreters can parse what they must, and the links are the folders."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from tree import ROOT, parsed, python_files

# package -> what of this project it may import
LAYERS = {
    "matrix": {"matrix", "errors", "command_line"},
    "probes": {"probes", "matrix", "errors", "command_line"},
    "engine": {"engine", "probes", "matrix", "errors", "command_line"},
    "build_support": {"build_support", "probes", "matrix", "errors", "command_line"},
    "deepinfer": {"deepinfer", "engine", "probes", "matrix", "errors", "command_line"},
}
# entry points that start the build's part of bring-up; both say so where there is no checkout
STARTS = {"deepinfer/attest.py": {"build_support"}, "deepinfer/rfc.py": {"build_support"}}
FOLDERS = ("matrix", "probes", "engine")
STANDARD_ONLY = ("probes", "build_support", "deepinfer", "matrix/index.py", "matrix/__init__.py")
BUILD_TOOLS = {"build_support/compile.py": {"scikit_build_core", "nanobind"}}  # after the gate has let a build pass
PRIVATE_STANDARD = {"_sha256"}  # part of CPython up to 3.11, where the probe also runs
HEAVY = {"torch", "numpy", "packaging", "tomli"}


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import, type-checking blocks included."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write deepinfer.{path.parts[0]}..."
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "deepinfer" else [node.module]
            )
            found += [(node.lineno, name or "") for name in names]
    return found


def layer_of(name: str) -> str | None:
    """Package of this project that an import names, or None for foreign ones."""
    parts = name.split(".")
    if parts[0] == "deepinfer":
        return parts[1] if len(parts) > 1 and parts[1] in (*FOLDERS, "errors", "command_line") else "deepinfer"
    return parts[0] if parts[0] == "build_support" else None


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] in LAYERS], ids=str)
def test_imports_go_one_way(path: Path) -> None:
    allowed = LAYERS[path.parts[0]] | ({"deepinfer"} if path.parts[0] != "matrix" else set())
    allowed = allowed | STARTS.get(path.as_posix(), set())
    for line, name in imports(path):
        layer = layer_of(name)
        assert layer is None or layer in allowed, f"{path}:{line}: {path.parts[0]} must not import {name}"


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_nobody_imports_a_folder_bare(path: Path) -> None:
    for line, name in imports(path):
        assert name.split(".")[0] not in FOLDERS, f"{path}:{line}: write deepinfer.{name}: bare, a class exists twice"


def standard_only() -> list[Path]:
    return [path for path in python_files() if path.as_posix().startswith(STANDARD_ONLY)]


@pytest.mark.parametrize("path", standard_only(), ids=str)
def test_probe_and_gate_use_the_standard_library_alone(path: Path) -> None:
    for line, name in imports(path):
        top = name.split(".")[0]
        ours = top in ("deepinfer", "build_support") or top in BUILD_TOOLS.get(path.as_posix(), ())
        assert ours or top in sys.stdlib_module_names | PRIVATE_STANDARD, (
            f"{path}:{line}: {name} is not in the standard library"
        )


@pytest.mark.parametrize("path", standard_only(), ids=str)
def test_probe_and_gate_parse_on_python_3_8(path: Path) -> None:
    ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] in ("matrix", "probes")], ids=str)
def test_matrix_and_probes_never_import_numeric_packages(path: Path) -> None:
    heavy = HEAVY - ({"packaging", "tomli"} if path.parts[0] == "matrix" else set())
    for line, name in imports(path):
        assert name.split(".")[0] not in heavy, f"{path}:{line}: {name}"


@pytest.mark.parametrize("name", FOLDERS)
def test_link_is_the_folder(name: str) -> None:
    link = ROOT / "deepinfer" / name
    assert link.is_symlink(), f"deepinfer/{name} must be a link: git checkout -- deepinfer/{name}"
    assert link.readlink() == Path("..") / name


def test_every_package_says_its_one_job() -> None:
    silent = [path for path in python_files() if path.name == "__init__.py" and not ast.get_docstring(parsed(path))]
    assert not silent, f"no docstring: {silent}"
