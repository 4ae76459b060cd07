"""A front end installs a wheel that it built for another target: first use says so, the printed command mends it.

Reproduced with pip and uv, each in the way in which it goes wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment


def fix_of(text: str) -> list[str]:
    match = re.search(r"fix: (.*)", text)
    assert match, text
    return match.group(1).split("   (")[0].split()


@pytest.mark.parametrize("front_end", ["pip", "uv"])
def test_a_stale_wheel_is_recognized_and_the_command_mends_it(
    front_end: str, environment: Callable[[str], Environment], sdist: Path, index: str, sm100_cxx: str
) -> None:
    # pip reuses what it built from an index whatever was asked for; uv does so for a file
    what = ["install", "deepinfer", "--index-url", index] if front_end == "pip" else ["install", str(sdist)]
    first, second = environment("first"), environment("second")
    done = first.front_end(front_end, *what, DEEPINFER_ACCELERATOR="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert first.load().stdout.strip() == "host-cpu"

    done = second.front_end(front_end, *what, DEEPINFER_ACCELERATOR="nvidia", CXX=sm100_cxx)
    assert done.returncode == 0, "the gate did not run: the wheel came from the cache\n" + done.stdout + done.stderr
    stale = second.load(DEEPINFER_ACCELERATOR="nvidia")
    assert stale.returncode != 0
    assert "DI320: installed is the artifact of host-cpu, asked for is nvidia-sm100" in stale.stderr

    variable, *words = fix_of(stale.stderr)
    assert variable == "DEEPINFER_ACCELERATOR=nvidia"
    program = 2 if front_end == "uv" else 1  # `uv pip` or `pip`
    more = ["--index-url", index] if front_end == "pip" else []
    done = second.front_end(front_end, *words[program:], *more, DEEPINFER_ACCELERATOR="nvidia", CXX=sm100_cxx)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = second.run("-m", "deepinfer.artifact", "show", "--json")
    assert json.loads(shown.stdout)["entry"] == "nvidia-sm100"
    assert "DI320" not in second.load(DEEPINFER_ACCELERATOR="nvidia").stderr
