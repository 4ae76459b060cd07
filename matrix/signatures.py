"""Signatures beside evidence: ``<file>.sig`` as ssh-keygen -Y writes it, held against rfcs/allowed_signers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deepinfer.matrix.findings import Finding
from deepinfer.matrix.rfc_case import RfcCase

NAMESPACE = "deepinfer-evidence"
SIGNERS = "rfcs/allowed_signers"


def signed(case: RfcCase) -> Iterator[Finding]:
    """R20: a signature beside evidence verifies for who the evidence says it is from."""
    for item in case.evidence:
        path = case.tree.root / (item.path + ".sig")
        if not path.is_file() or not item.data:
            continue
        reason = problem(case.tree.root, case.tree.root / item.path, path, item.data["provenance"]["by"])
        if reason:
            yield Finding(item.path + ".sig", 1, "R20", reason, "sign it again, or add the key to %s" % SIGNERS)


def problem(root: Path, file: Path, signature: Path, who: str) -> str:
    """Why the signature does not hold; an empty string if it does."""
    signers = root / SIGNERS
    if not signers.is_file():
        return "nobody's key is listed: there is no %s" % SIGNERS
    program = shutil.which("ssh-keygen")
    if program is None:
        return "ssh-keygen is not here to verify it"
    words = [program, "-Y", "verify", "-f", str(signers), "-I", who, "-n", NAMESPACE, "-s", str(signature)]
    done = subprocess.run(words, input=file.read_bytes(), capture_output=True, timeout=20, check=False)
    return "" if done.returncode == 0 else "it is not a signature of %s over this file" % who
