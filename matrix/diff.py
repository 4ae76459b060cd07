"""What changed in the matrix between a git revision and the tree as it is, in the matrix's own words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.errors import DeepInferError
from deepinfer.matrix.compiled import index_of
from deepinfer.matrix.difference import Change, changes
from deepinfer.matrix.index import SCHEMA
from deepinfer.matrix.load import Tree

INDEX = "matrix/index.json"


class NoHistory(DeepInferError):
    """A comparison needs git and a repository, and one of them is not here."""

    code = "DI116"


class NoRevision(DeepInferError):
    """git knows no commit of this name."""

    code = "DI117"


class NoOldMatrix(DeepInferError):
    """The revision holds no compiled matrix, or one of a form that this version does not read."""

    code = "DI118"


class Difference(NamedTuple):
    """The commit that was compared with, and what has changed since."""

    commit: str
    changes: list[Change]


def difference(tree: Tree, revision: str) -> Difference:
    """What changed since ``revision``. The tree is compiled anew; of the revision its own index.json counts."""
    commit = _commit(tree.root, revision)
    return Difference(commit, changes(_index_at(tree.root, commit, revision), index_of(tree)))


def difference_data(found: Difference) -> dict[str, Any]:
    """For programs."""
    return {"schema": 1, "since": found.commit, "changes": [change._asdict() for change in found.changes]}


def difference_text(found: Difference) -> str:
    """One line per change, under the thing that changed."""
    lines, last = ["since %s:" % found.commit[:12]], ""
    for change in found.changes:
        if change.subject != last:
            lines.append(change.subject)
            last = change.subject
        lines.append("  %s" % change.says)
    if not found.changes:
        lines = ["nothing changed in the matrix since %s" % found.commit[:12]]
    return "\n".join(lines) + "\n"


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        raise NoHistory("git is not installed", fix="install git: apt-get install git") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoHistory("git does not run: %s" % error, fix="try it by hand: git status") from None


def _commit(root: Path, revision: str) -> str:
    inside = _git(root, "rev-parse", "--is-inside-work-tree")
    if inside.returncode or inside.stdout.strip() != b"true":
        said = inside.stderr.decode("utf-8", "replace").strip().splitlines()
        why = said[0] if said else ""
        raise NoHistory("%s is not in a git repository" % root, why=why, fix="run it in a clone of the repository")
    # NUL cannot be handed to a program, and a revision that begins with a dash must not become an option.
    if "\0" not in revision:
        asked = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", "%s^{commit}" % revision)
        if asked.returncode == 0:
            return asked.stdout.decode("ascii").strip()
    fix = "git log --oneline names them; in a shallow clone: git fetch --unshallow"
    raise NoRevision("no commit is called %r here" % revision, fix=fix)


def _index_at(root: Path, commit: str, revision: str) -> dict[str, Any]:
    shown = _git(root, "show", "--end-of-options", "%s:./%s" % (commit, INDEX))
    older = "compare with a later revision: git log --oneline -- %s" % INDEX
    if shown.returncode:
        raise NoOldMatrix("%s has no %s" % (revision, INDEX), fix=older)
    try:
        index: Any = json.loads(shown.stdout.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NoOldMatrix("%s of %s is not JSON: %s" % (INDEX, revision, error), fix=older) from None
    form = {"entries": list, "rfcs": dict}
    if not isinstance(index, dict) or not all(isinstance(index.get(key), kind) for key, kind in form.items()):
        raise NoOldMatrix("%s of %s is not a compiled matrix" % (INDEX, revision), fix=older)
    if index.get("schema") != SCHEMA:
        what = "%s of %s has schema %r; this version reads %d" % (INDEX, revision, index.get("schema"), SCHEMA)
        raise NoOldMatrix(what, fix=older)
    return index
