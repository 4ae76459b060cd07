"""compute-sanitizer over the kernels: every case of every op launched once, reads, writes and races watched.

``python -m deepinfer.engine.attest.sanitize LIBRARY SEED FILE`` is what runs under the tool: the launches of one file
of ops, without references, so that only kernels of ours and the filling of tensors are watched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.engine.attest.document import Run

# Hand-overs may go through a third warp: without the option racecheck knows of direct ones alone.
TOOLS = {"memcheck": [], "racecheck": ["--racecheck-report", "hazard", "--racecheck-indirect-barrier-dependency"]}
SECONDS = 75  # of one file of ops under one tool
_ERRORS = {"memcheck": r"ERROR SUMMARY: (\d+) error", "racecheck": r"RACECHECK SUMMARY: (\d+) hazard"}
_LAUNCHED = r"(\d+) cases launched"
LATE = "it did not end in %d s" % SECONDS


def files() -> list[str]:
    """Files of ops that have CUDA kernels."""
    from deepinfer.engine.ops.registry import load_all

    return sorted({_file(op) for op in load_all().values() if "cuda" in op.native})


def _file(op: object) -> str:
    return str(op.cases.__module__).rpartition(".")[2]  # type: ignore[attr-defined]


def sanitize(run: Run, library: str, seed: int) -> None:
    """One check per tool and file of ops, many at a time; where the tool is missing they say so and are not judged."""
    pairs = [(tool, name) for tool in TOOLS for name in files()]
    program = shutil.which("compute-sanitizer", path=_search_path())
    if program is None:
        for tool, name in pairs:
            run.check("%s.%s" % (tool, name), None, note="compute-sanitizer is not installed")
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run.root), os.environ.get("PYTHONPATH", "")])}

    def watched(pair: tuple[str, str]) -> str:
        tool, name = pair
        launches = [sys.executable, "-m", "deepinfer.engine.attest.sanitize", library, str(seed), name]
        words = [program, "--tool", tool, *TOOLS[tool], *launches]
        try:
            done = subprocess.run(
                words, cwd=run.root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return LATE
        return done.stdout + done.stderr

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as workers:
        for (tool, name), said in zip(pairs, workers.map(watched, pairs), strict=True):
            judge(run, tool, name, said)


def judge(run: Run, tool: str, name: str, said: str) -> None:
    """The check of one run by what it printed. One that was not finished is not judged; one without a summary fails."""
    check = "%s.%s" % (tool, name)
    if said == LATE:
        run.check(check, None, note=LATE)
        return
    found, launched = re.search(_ERRORS[tool], said), re.search(_LAUNCHED, said)
    if found is None or launched is None:
        run.check(check, False, note="it ended without a summary: %s" % said.strip()[-200:])
        return
    count, cases = int(found.group(1)), int(launched.group(1))
    note = "%d cases launched" % cases
    places = sorted(set(re.findall(r"Thread \(\d+,\d+,\d+\) at (\S.*?)\(", said)))
    if count and places:
        note += "; in %s" % ", ".join(places[:3])
    run.check(check, count == 0 and cases > 0, count, "errors", "0", note)


def _search_path() -> str:
    own = [str(Path(root) / "bin") for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if root]
    return os.pathsep.join([os.environ.get("PATH", ""), *own])


def main(library: str, seed: int, name: str) -> int:
    """Launch every case of one file once; prints how many there were."""
    import torch

    from deepinfer.engine.attest.device_ops import DeviceOps
    from deepinfer.engine.ops.conformance import poisoned
    from deepinfer.engine.ops.registry import load_all

    module, count = DeviceOps(library), 0
    for op in load_all().values():
        if "cuda" not in op.native or _file(op) != name:
            continue
        for case in op.cases(torch.Generator().manual_seed(seed), "cuda:0"):
            outputs = {key: poisoned(shape, dtype, "cuda:0") for key, (shape, dtype) in case.out.items()}
            op.native["cuda"](module, case.inputs, outputs, case.scalars)
            count += 1
    torch.cuda.synchronize()
    print("%d cases launched" % count)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
