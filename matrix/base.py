"""The tree as it was at a revision, for rules and reports that compare."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepinfer.errors import DeepInferError
from deepinfer.matrix.evidence import FOLDER
from deepinfer.matrix.load import Tree, load


class NoSuchBase(DeepInferError):
    """The revision given to ``--base`` cannot be read."""

    code = "DI402"


@contextmanager
def at(root: Path, revision: str) -> Iterator[tuple[Tree, list[str]]]:
    """(tree, paths of its evidence) at ``revision``, in a folder that lasts as long as the block."""
    data = _git(root, revision, "archive", "--format=tar", "%s^{tree}" % revision, "matrix", "rfcs")
    with tempfile.TemporaryDirectory(prefix="deepinfer-base-") as folder:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for item in archive.getmembers():
                if item.isfile() and not item.name.startswith("/") and ".." not in item.name.split("/"):
                    target = Path(folder) / item.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(item)
                    target.write_bytes(content.read() if content else b"")
        for needed in ("matrix/entries", "rfcs"):
            (Path(folder) / needed).mkdir(parents=True, exist_ok=True)
        names = [path.relative_to(folder).as_posix() for path in sorted((Path(folder) / FOLDER).rglob("*.json"))]
        yield load(folder), names


def _git(root: Path, revision: str, *words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, timeout=60, check=False)
    except OSError as error:
        raise NoSuchBase("git cannot be started: %s" % error.strerror, fix="install git") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise NoSuchBase(
            "revision %r cannot be read: %s" % (revision, said[-1]),
            fix="name a commit of this clone: git log --oneline",
        )
    return done.stdout
