"""compute-sanitizer over the kernels: every case of every op launched once, reads, writes and races watched.

``python -m deepinfer.engine.attest.sanitize LIBRARY SEED`` is what runs under the tool: launches alone, without
references, so that only kernels of ours and the filling of tensors are watched.
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

TOOLS = ("memcheck", "racecheck")
SECONDS = 900
_ERRORS = {"memcheck": r"ERROR SUMMARY: (\d+) error", "racecheck": r"RACECHECK SUMMARY: (\d+) hazard"}
_LAUNCHED = r"(\d+) cases launched"


def sanitize(run: Run, library: str, seed: int) -> None:
    """One check per tool, at the same time; where compute-sanitizer is missing they say so and are not judged."""
    program = shutil.which("compute-sanitizer", path=_search_path())
    if program is None:
        for tool in TOOLS:
            run.check("sanitizer." + tool, None, note="compute-sanitizer is not installed")
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run.root), os.environ.get("PYTHONPATH", "")])}
    launches = [sys.executable, "-m", "deepinfer.engine.attest.sanitize", library, str(seed)]

    def watched(tool: str) -> str:
        words = [program, "--tool", tool, *launches]
        try:
            done = subprocess.run(
                words, cwd=run.root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "it did not end in %d s" % SECONDS
        return done.stdout + done.stderr

    with ThreadPoolExecutor(max_workers=len(TOOLS)) as workers:
        for tool, said in zip(TOOLS, workers.map(watched, TOOLS), strict=True):
            judge(run, tool, said)


def judge(run: Run, tool: str, said: str) -> None:
    """The check of one tool by what it printed; a run that launched nothing, or did not sum up, fails."""
    found, launched = re.search(_ERRORS[tool], said), re.search(_LAUNCHED, said)
    if found is None or launched is None:
        run.check("sanitizer." + tool, False, note="it ended without a summary: %s" % said.strip()[-200:])
        return
    count, cases = int(found.group(1)), int(launched.group(1))
    run.check("sanitizer." + tool, count == 0 and cases > 0, count, "errors", "0", "%d cases launched" % cases)


def _search_path() -> str:
    own = [str(Path(root) / "bin") for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if root]
    return os.pathsep.join([os.environ.get("PATH", ""), *own])


def main(library: str, seed: int) -> int:
    """Launch every case once; prints how many there were."""
    import torch

    from deepinfer.engine.attest.device_ops import DeviceOps
    from deepinfer.engine.ops.conformance import poisoned
    from deepinfer.engine.ops.registry import load_all

    module, count = DeviceOps(library), 0
    for _, op in sorted(load_all().items()):
        if "cuda" not in op.native:
            continue
        for case in op.cases(torch.Generator().manual_seed(seed), "cuda:0"):
            outputs = {key: poisoned(shape, dtype, "cuda:0") for key, (shape, dtype) in case.out.items()}
            op.native["cuda"](module, case.inputs, outputs, case.scalars)
            count += 1
    torch.cuda.synchronize()
    print("%d cases launched" % count)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
