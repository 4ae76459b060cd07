"""Gate ``bench``: every bench of kernels, its rows held against a share of what this device was measured to allow.

The share is the row's own ``floor``; ceilings are measured by the same process as the row. Goals against peers are told
in the note of a row and close nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.errors import DeepInferError

if TYPE_CHECKING:
    from deepinfer.engine.attest.document import Run

SECONDS = 1800  # the wait for the device counted in


class BenchFailed(DeepInferError):
    """A bench ended without its rows."""

    code = "DI431"


def benches(root: Path) -> list[Path]:
    """The benches of kernels: ``bench/gpu_*.py`` that hand their rows to ``main`` of gpu_timing.py."""
    found = []
    for path in sorted(root.glob("bench/gpu_*.py")):
        text = path.read_text("utf-8")
        if "__main__" in text and re.search(r"\bmain\(__doc__, ", text):
            found.append(path)
    return found


def bench(run: Run, library: str) -> None:
    """One check per row, and a failed one for a bench that gives none.

    All benches are started at once and wait for each other before they touch the device: imports take as long as
    measuring.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = [(path, _start(run.root, path, library, Path(folder))) for path in benches(run.root)]
        try:
            for path, process in started:
                try:
                    _told(run, path, _finish(path, process, Path(folder)))
                except BenchFailed as error:  # the others are still worth having
                    run.check(
                        "%s.ran" % path.stem.removeprefix("gpu_"), False, note="%s: %s" % (error.code, error.what)
                    )
        finally:
            for _, process in started:
                process.kill()
                process.wait()


def _told(run: Run, path: Path, document: dict[str, Any]) -> None:
    name = path.stem.removeprefix("gpu_")
    ceiling = "%d" % round(document["read_bytes_per_s"])
    run.check("%s.read_ceiling" % name, None, ceiling, "bytes/s", note="measured, not judged")
    for number, row in enumerate(document["rows"]):
        _judge(run, "%s.%d" % (name, number), row)


def _judge(run: Run, check: str, row: dict[str, Any]) -> None:
    floor, bound = row["floor"], row["bound_us"]
    fine = None if floor is None or not bound else bound / row["us"] >= floor
    words = [row["case"], row["form"]]
    if row["spread"] is not None:
        words.append("spread %.1f %%" % (100.0 * row["spread"]))
    if row["baseline_us"] is not None:
        words.append("%s: %.1f us" % (row["baseline"], row["baseline_us"]))
    if row["goal"]:
        words.append("goal %s: %s" % (row["goal"], {True: "met", False: "missed", None: "not judged"}[row["met"]]))
    least = "" if not bound else "%.1f us possible" % bound
    if fine is not None:
        least += ", at least %.0f %% of it" % (100.0 * floor)
    run.check(check, fine, "%.2f" % row["us"], "us", least, "; ".join(word for word in words if word))


def _start(root: Path, path: Path, library: str, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, str(path), "--library", library, "--json", str(folder / (path.stem + ".json"))]
    environment = {**os.environ, "GPU_BENCH_TURN": str(folder / "turn")}
    with (folder / (path.stem + ".err")).open("w", encoding="utf-8") as said:
        return subprocess.Popen(words, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=said, text=True)


def _finish(path: Path, process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    try:
        process.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchFailed("%s did not end in %d s" % (path.name, SECONDS), fix="run it alone") from None
    target = folder / (path.stem + ".json")
    if not target.is_file():
        said = (folder / (path.stem + ".err")).read_text("utf-8", errors="replace")
        last = (said.strip().splitlines() or ["no message"])[-1]
        raise BenchFailed("%s ended with %d: %s" % (path.name, process.returncode, last), fix="run it alone")
    found: dict[str, Any] = json.loads(target.read_text("utf-8"))
    if not found["rows"]:
        raise BenchFailed("%s measured nothing" % path.name, fix="run it alone")
    return found
