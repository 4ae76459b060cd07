"""git for the tests, and the identifiers that are planted in hosts and must not come out again."""

from __future__ import annotations

import subprocess
from pathlib import Path

PLANTED = ("planted-host", "planted-user", "GPU-5a3c1f9e-0b1d-4c2e-8f00-123456789abc", "f00dfeed" * 4, "/home/planted")


def git(root: Path, *words: str) -> str:
    base = ["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "commit.gpgsign=false"]
    return subprocess.run([*base, *words], cwd=root, check=True, capture_output=True, text=True).stdout
