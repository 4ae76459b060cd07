"""What is generated equals what its writer writes, and what is written twice is equal."""

from __future__ import annotations

import tomllib
from tree import ROOT

import deepinfer
from deepinfer.matrix.render import render
from deepinfer.probes.catalog import page


def test_matrix_files_are_up_to_date() -> None:
    assert render(ROOT, write=False) == [], "python -m deepinfer.matrix render"


def test_the_page_of_checks_is_up_to_date() -> None:
    assert (ROOT / "docs/checks.md").read_text(encoding="utf-8") == page(), "python3 -m deepinfer.probes.catalog"


def test_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == deepinfer.__version__


def test_readme_commands_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for words in ("build_support/bootstrap.sh", "docs/checks.md", "docs/errors.md", "CONTRIBUTING.md"):
        assert words in text
        assert (ROOT / words).is_file()


def test_ci_calls_the_readme_commands() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "bash build_support/bootstrap.sh demo" in script
    assert "bash build_support/bootstrap.sh test" in script
