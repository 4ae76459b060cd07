"""compute-sanitizer over the kernels: every case of every op launched once, reads, writes and races watched.

``python -m deepinfer.engine.attest.sanitize LIBRARY SEED FILE [SHARD SHARDS]`` is what runs under the tool: launches of
one file of ops, without references, so that only kernels of ours and the filling of tensors are watched. SHARD, from 0,
of SHARDS takes every SHARDS-th case; without them it takes all. It prints ``at OP, CASE`` before each and
``took SECONDS s: OP, CASE`` once the device is done with it, and at the end how many cases it launched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.engine.attest.document import Run

# Hand-overs may go through a third warp: without the option racecheck knows of direct ones alone.
TOOLS = {"memcheck": [], "racecheck": ["--racecheck-report", "hazard", "--racecheck-indirect-barrier-dependency"]}
CASES = {"memcheck": 16, "racecheck": 6}  # that one process launches, at most
SECONDS = 240  # of one process; many share the device
_ERRORS = {"memcheck": r"ERROR SUMMARY: (\d+) error", "racecheck": r"RACECHECK SUMMARY: (\d+) hazard"}
_LAUNCHED = r"^(\d+) cases launched$"
_AT, _TOOK = r"^at (.+)$", r"^took [\d.]+ s: (.+)$"
_PLACE = r"Thread \(\d+,\d+,\d+\) at (\S.*?)\("  # printed with an error, and then alone


@dataclass(frozen=True)
class Ended:
    """What one process printed; ``late``: it had to be ended."""

    said: str
    late: bool = False


def files(seed: int) -> Counter[str]:
    """How many cases each file of ops has that has CUDA kernels."""
    import torch

    from deepinfer.engine.ops.registry import load_all

    found: Counter[str] = Counter()
    for op in load_all().values():
        if "cuda" in op.native:
            found[_file(op)] += sum(1 for _ in op.cases(torch.Generator().manual_seed(seed), "cpu"))
    return found


def _file(op: object) -> str:
    return str(op.cases.__module__).rpartition(".")[2]  # type: ignore[attr-defined]


def sanitize(run: Run, library: str, seed: int) -> None:
    """One check per tool and file of ops, each of several processes; where the tool is missing none is judged."""
    cases = files(seed)
    checks = [(tool, name) for tool in TOOLS for name in sorted(cases)]
    program = shutil.which("compute-sanitizer", path=_search_path())
    if program is None:
        for tool, name in checks:
            run.check("%s.%s" % (tool, name), None, note="compute-sanitizer is not installed")
        return
    owners, commands = [], []
    for tool, name in checks:
        shards = -(-cases[name] // CASES[tool])
        watched = [program, "--tool", tool, *TOOLS[tool], sys.executable, "-m", "deepinfer.engine.attest.sanitize"]
        for shard in range(shards):
            owners.append((tool, name))
            commands.append([*watched, library, str(seed), name, str(shard), str(shards)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # there are as many processes as processors
    environment |= {"PYTHONPATH": os.pathsep.join([str(run.root), os.environ.get("PYTHONPATH", "")])}
    ended = Processes(SECONDS, run.root, environment).run(commands)
    for tool, name in checks:
        judge(run, tool, name, cases[name], [one for one, of in zip(ended, owners, strict=True) if of == (tool, name)])


class Processes:
    """Runs commands, as many at a time as there are processors, and lets nothing outlive its time, ours included."""

    def __init__(self, seconds: float, root: Path, environment: Mapping[str, str]) -> None:
        self._seconds, self._root, self._environment = seconds, root, environment
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, commands: Sequence[Sequence[str]]) -> list[Ended]:
        """What came of each. An exception, such as of Ctrl-C, ends those that run, and so does SIGTERM."""
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as workers, _terminated_by_exception():
            waiting = [workers.submit(self._one, words) for words in commands]
            try:
                return [one.result() for one in waiting]
            except BaseException:
                self._stopped = True
                workers.shutdown(wait=False, cancel_futures=True)
                for process in list(self._running):
                    _kill(process)
                raise

    def _one(self, words: Sequence[str]) -> Ended:
        late = False
        with tempfile.TemporaryFile() as output:  # a pipe would be held open by whatever outlives the process
            process = subprocess.Popen(
                words,
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                process.wait(0 if self._stopped else self._seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _kill(process)  # the tool may be gone and what it watched not: it would keep the device busy
                process.wait()
                self._running.discard(process)
            output.seek(0)
            return Ended(output.read().decode("utf-8", "replace"), late)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A process and all that it started."""
    with contextlib.suppress(OSError):  # all are gone
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """SIGTERM ends this process by an exception: processes of other sessions do not get what their parent gets."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def judge(run: Run, tool: str, name: str, cases: int, ended: Sequence[Ended]) -> None:
    """The check of a file's processes by what they printed.

    One without a summary fails it, and so do errors; where one was late and nothing failed it is not judged.
    """
    check = "%s.%s" % (tool, name)
    errors = 0
    for one in ended:
        found = re.search(_ERRORS[tool], one.said)
        if one.late:
            errors += int(re.search(_PLACE, one.said) is not None)  # at least one, and no summary to say how many
        elif found is None or re.search(_LAUNCHED, one.said, re.MULTILINE) is None:
            run.check(check, False, note="it ended without a summary: %s" % one.said.strip()[-200:])
            return
        else:
            errors += int(found.group(1))
    launched = sum(len(re.findall(_TOOK, one.said, re.MULTILINE)) for one in ended)
    note = "%d of %d cases launched" % (launched, cases)
    late = [_place(one.said) for one in ended if one.late]
    if late:
        of = "%d of %d processes" % (len(late), len(ended))
        note += "; %s did not end in %d s: %s" % (of, SECONDS, "; ".join(late[:3]))
    places = sorted({place for one in ended for place in re.findall(_PLACE, one.said)})
    if errors and places:
        note += "; in %s" % ", ".join(places[:3])
    if late and not errors:
        run.check(check, None, note=note)
        return
    run.check(check, errors == 0 and launched == cases > 0, errors, "errors", "0", note)


def _place(said: str) -> str:
    """Where a process was that did not end."""
    begun, done = (re.findall(pattern, said, re.MULTILINE) for pattern in (_AT, _TOOK))
    if not begun:
        return "before its first case"
    return "%s %s" % ("after" if begun[-1:] == done[-1:] else "at", begun[-1])


def _search_path() -> str:
    own = [str(Path(root) / "bin") for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if root]
    return os.pathsep.join([os.environ.get("PATH", ""), *own])


def main(library: str, seed: int, name: str, shard: int = 0, shards: int = 1) -> int:
    """Launch every ``shards``-th case of one file once, from number ``shard``; says which, and how many there were."""
    import torch

    from deepinfer.engine.attest.device_ops import DeviceOps
    from deepinfer.engine.ops.conformance import poisoned
    from deepinfer.engine.ops.registry import load_all

    signal.alarm(2 * SECONDS)  # if nobody is left to end it
    module, seen, count = DeviceOps(library), 0, 0
    for op in load_all().values():
        if "cuda" not in op.native or _file(op) != name:
            continue
        for case in op.cases(torch.Generator().manual_seed(seed), "cuda:0"):
            seen += 1
            if (seen - 1) % shards != shard:
                continue
            label = "%s, %s" % (op.contract.name, case.label)
            print("at " + label, flush=True)
            begin = time.monotonic()
            outputs = {key: poisoned(shape, dtype, "cuda:0") for key, (shape, dtype) in case.out.items()}
            op.native["cuda"](module, case.inputs, outputs, case.scalars)
            torch.cuda.synchronize()
            print("took %.2f s: %s" % (time.monotonic() - begin, label), flush=True)
            count += 1
    print("%d cases launched" % count)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6])))
