"""What the house tests look at: the files that git knows, and the Python ones parsed."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("deepinfer", "matrix", "probes", "engine", "build_support", "bench", "examples", "tests")


@cache
def files() -> tuple[Path, ...]:
    """Tracked and new files, links left out, as paths relative to the root."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(
        Path(name) for name in sorted(set(listed)) if (ROOT / name).is_file() and not (ROOT / name).is_symlink()
    )


@cache
def python_files() -> tuple[Path, ...]:
    return tuple(path for path in files() if path.suffix == ".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))
