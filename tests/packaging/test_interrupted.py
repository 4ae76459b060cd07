"""A build that is killed leaves nothing installable behind, and the next one is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from environments import Environment


def test_a_killed_build_leaves_no_wheel_and_the_next_one_is_whole(
    environment: Callable[[str], Environment], sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.glob("deepinfer-*")
    wheels = tmp_path / "wheels"
    made = environment("killed")
    command = [sys.executable, "-m", "pip", "--python", str(made.python), "wheel", str(tree), "--no-deps"]
    command += ["--no-build-isolation", "-w", str(wheels), "-C", "deepinfer.target=host-cpu"]
    env = made.variables(building=True)
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 400  # a loaded machine takes its time
        while not list(tree.glob("build/host-cpu/**/*.o")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, "the build ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(wheels.glob("*.whl"))
    assert list(tree.glob("build/host-cpu/**/*.o")), "it was killed in the middle"

    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert "deepinfer/_build_record.json" in archive.namelist()
