"""Fresh environments and front ends for the packaging tests; the environment that runs the tests does not leak in."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 900


class Environment:
    """A new virtual environment with the build tools at hand but not installed, and caches of its own."""

    def __init__(self, folder: Path, tools: Path, caches: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin/python"
        self.tools = tools
        self.caches = caches

    def variables(self, *, building: bool, **more: str) -> dict[str, str]:
        foreign = ("PIP_", "UV_", "DEEPINFER_", "PYTHONPATH", "VIRTUAL_ENV", "CXX")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        kept.update(
            PIP_CACHE_DIR=str(self.caches / "pip"), UV_CACHE_DIR=str(self.caches / "uv"), UV_PYTHON_DOWNLOADS="never"
        )
        if building:
            kept["PYTHONPATH"] = str(self.tools)
        return {**kept, **more}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's interpreter away from the checkout."""
        env = self.variables(building=False, **more)
        command = [str(self.python), *words]
        return subprocess.run(command, cwd=self.caches, env=env, capture_output=True, text=True, check=False)

    def front_end(self, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """``pip`` or ``uv pip`` on this environment, offline, without build isolation."""
        if name == "pip":
            command = [sys.executable, "-m", "pip", "--python", str(self.python), *words, "--no-build-isolation"]
            command += ["--disable-pip-version-check"]
        else:
            uv = str(Path(sys.executable).parent / "uv")
            command = [uv, "pip", *words, "--python", str(self.python), "--no-build-isolation", "--offline"]
        env = self.variables(building=True, **more)
        return subprocess.run(
            command, cwd=self.caches, env=env, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
        )

    def load(self, **more: str) -> subprocess.CompletedProcess[str]:
        """First use of the native module."""
        code = "from deepinfer.engine.native import load; print(load().capabilities()['compiled_for'])"
        return self.run("-c", code, **more)


def compiler_for_sm100() -> str:
    """A compiler that the gate accepts for nvidia-sm100 here, or an empty string."""
    from deepinfer.matrix.index import load_index
    from deepinfer.probes.judge import judge
    from deepinfer.probes.live import LiveView
    from deepinfer.probes.wish import Wish

    wish = Wish()
    wish.target, wish.named_by = "nvidia-sm100", "-C deepinfer.target"
    wish.cxx = os.environ.get("PACKAGING_TESTS_CXX", "")
    verdict = judge(LiveView(), load_index(), wish, aspect="build")
    if verdict.verdict != "eligible":
        return ""
    return str(verdict.toolchain.compiler.words[0])
