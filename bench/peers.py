"""The peers' files: named by the user, cached, or taken out of the wheel that pip downloads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

FETCH_LIMIT_S = 900.0


class Peer(NamedTuple):
    """A file inside a wheel. The hash says that every run measures the same file."""

    name: str
    requirement: str
    member: str
    sha256: str
    words: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()


PEERS = (
    Peer(
        "flashinfer",
        "flashinfer-python==0.7.4",
        "flashinfer/collect_env.py",
        "0858bcbb4ff07d433438fe03213672f77b282561b7e7c3b7de3390dbce5c5968",
        words=("--json",),
    ),
    Peer(
        "torch",
        "torch==2.13.0",
        "torch/utils/collect_env.py",
        "05ffc3f6a80dc8d04d21b750c79c6fe809e07032ce317461abbbfbbc1a2d284d",
        # The file is the same in every wheel of a release, and macOS has the smallest one: no device code in it.
        pip=("--platform", "macosx_14_0_arm64", "--python-version", "3.12", "--implementation", "cp"),
    ),
)


class Unavailable(Exception):
    """The file of a peer cannot be had; ``str()`` is the reason."""


def find(peer: Peer, named: Path | None, cache: Path) -> Path:
    """The peer's file: the named one, the cached one, or fetched now. Raises :class:`Unavailable`."""
    if named is not None:
        if not named.is_file():
            raise Unavailable("%s is not a file" % named)
        return named.resolve()
    path = cache / (peer.requirement.replace("==", "-") + "-" + Path(peer.member).name)
    try:
        if not path.is_file():
            fetch(peer, path)
        seen = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, zipfile.BadZipFile, KeyError, subprocess.TimeoutExpired) as error:
        raise Unavailable("%s: %s" % (type(error).__name__, error)) from error
    if seen != peer.sha256:
        raise Unavailable("%s is not the file of %s (sha256 %s...); remove it" % (path, peer.requirement, seen[:12]))
    return path


def fetch(peer: Peer, path: Path) -> None:
    """Download the wheel and keep only the one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [*peer.pip, "--dest", folder, peer.requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]  # the first is the cause
            reason = errors[0].partition(" ")[2] if errors else last_line(done.stderr)
            raise Unavailable("pip download %s: %s" % (peer.requirement, reason))
        with zipfile.ZipFile(wheels[0]) as wheel:
            part = Path(folder) / "part"
            part.write_bytes(wheel.read(peer.member))
        os.replace(part, path)  # never half a file under the final name


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
