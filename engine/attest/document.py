"""One evidence file: put together, sealed, written where its content says, and signed if asked."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import deepinfer
from deepinfer.errors import DeepInferError
from deepinfer.matrix.evidence import FOLDER, IDENTIFIERS
from deepinfer.matrix.evidence_form import SCHEMA, canonical, file_name, form_problems, sealed
from deepinfer.matrix.gates import lane_of, source_digest
from deepinfer.matrix.signatures import NAMESPACE
from deepinfer.probes.redact import masked


class NoRepository(DeepInferError):
    """git cannot say which commit this tree is."""

    code = "DI424"


class Unspeakable(DeepInferError):
    """The evidence would hold an identifier of the host or a person, or has not its own form; nothing was written."""

    code = "DI425"


class NotSigned(DeepInferError):
    """ssh-keygen did not sign the evidence; the evidence itself was written."""

    code = "DI426"


class Run:
    """A gate while it runs: ``checks`` and ``artifacts`` are filled in, then :meth:`document` seals them."""

    def __init__(self, root: Path, gate: str, entry: dict[str, Any], argv: list[str], by: str, kind: str) -> None:
        self.root, self.gate, self.entry = root, gate, entry
        self.argv = [masked(word, os.path.expanduser("~")) for word in argv]
        self.provenance = {"by": by, "kind": kind}
        self.commit, self.dirty = state_of(root)
        self.started = now()
        self.checks: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.error = ""

    def check(
        self, name: str, fine: bool | None, measured: int | str = "", unit: str = "", bound: str = "", note: str = ""
    ) -> None:
        """Add one check; ``fine`` None: not judged, and ``note`` says why."""
        outcome = "skip" if fine is None else "pass" if fine else "fail"
        home = os.path.expanduser("~")
        row = {"id": name, "outcome": outcome, "measured": measured, "unit": unit, "bound": bound}
        self.checks.append({**row, "note": masked(note, home)})

    def document(self, host: dict[str, Any]) -> dict[str, Any]:
        """The sealed document. Raises :class:`Unspeakable`."""
        outcomes = [check["outcome"] for check in self.checks]
        outcome = "pass" if "pass" in outcomes and "fail" not in outcomes else "fail"
        document = sealed(
            {
                "schema": SCHEMA,
                "gate": self.gate,
                "entry": self.entry["id"],
                "lane": lane_of(self.entry),
                "outcome": "error" if self.error else outcome,
                "commit": self.commit,
                "dirty": self.dirty,
                "source_digest": source_digest(self.root, self.gate, self.entry),
                "tool": {"name": "deepinfer.attest", "version": deepinfer.__version__},
                "argv": self.argv,
                "started": self.started,
                "finished": now(),
                "host": host,
                "checks": self.checks,
                "artifacts": self.artifacts,
                "provenance": self.provenance,
            }
        )
        problems = form_problems(document)
        found = IDENTIFIERS.search(canonical(document))
        if problems or found:
            what = problems[0] if problems else "it holds %r" % (found.group(0) if found else "")
            raise Unspeakable("the evidence was not written: %s" % what, fix="report it; it is a defect of the writer")
        return document


def now() -> str:
    """UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def state_of(root: Path) -> tuple[str, bool]:
    """Commit of the tree, and whether anything but evidence was changed since. Raises :class:`NoRepository`."""
    commit = _git(root, "rev-parse", "HEAD").strip()
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", ":(exclude)%s" % FOLDER)
    return commit, bool(changes.strip())


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise NoRepository("git cannot be started: %s" % error.strerror, fix="install git") from None
    if done.returncode != 0:
        said = masked(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
        raise NoRepository(
            "git cannot say which commit this is: %s" % said, fix="run it in a clone: evidence names its commit"
        )
    return done.stdout


def write(root: Path, document: dict[str, Any]) -> Path:
    """Write the document; returns its path. Never over another one."""
    path = root / FOLDER / file_name(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(canonical(document), encoding="ascii")
    os.replace(draft, path)
    return path


def sign(path: Path, key: str) -> Path:
    """A detached signature beside the file, by ``ssh-keygen -Y sign``. Raises :class:`NotSigned`."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise NotSigned("ssh-keygen is not here", fix="install openssh-client, or leave --sign out")
    words = [program, "-Y", "sign", "-f", key, "-n", NAMESPACE, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NotSigned(
            "ssh-keygen: %s" % masked(done.stderr.strip()), fix="--sign names a private key that you may use"
        )
    return path.with_name(path.name + ".sig")
