"""Finds the installed artifact: native module, record, and the hashes that the installer wrote down for them."""

from __future__ import annotations

import os

from deepinfer.errors import DeepInferError
from deepinfer.probes.artifact.record import FILE, RecordBroken, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DISTRIBUTION = "deepinfer"
MODULE = "deepinfer._native"


class ArtifactMissing(DeepInferError):
    """There is no native module: this is a bare checkout, or nothing was built."""

    code = "DI310"


class ArtifactChanged(DeepInferError):
    """A file of the artifact is not the one that was installed."""

    code = "DI312"


class Installed:
    """Where things lie. ``hashes``: path -> ``sha256=...`` as in RECORD; ``origin``: local source folder, if any."""

    def __init__(self, module: str, record: dict[str, Any]) -> None:
        self.module = module
        self.record = record
        self.hashes: dict[str, str] = {}
        self.installer = "pip"
        self.origin = ""
        self.editable = False
        self.version = ""

    def reinstall(self, variable: str = "") -> str:
        """The exact command that builds anew, past every cache. ``variable``: such as ``DEEPINFER_ACCELERATOR=cpu``."""
        what = "%s==%s" % (DISTRIBUTION, self.version)
        if self.origin:
            what = "-e %s" % self.origin if self.editable else self.origin
        tool = (
            "uv pip install --no-cache --reinstall"
            if self.installer == "uv"
            else "pip install --no-cache-dir --force-reinstall"
        )
        return " ".join(word for word in (variable, tool, what) if word)


def find() -> Installed:
    """The installed artifact. Imports nothing of it. Raises :class:`ArtifactMissing` and :class:`RecordBroken`."""
    from importlib.util import find_spec

    spec = find_spec(MODULE)
    if spec is None or not spec.origin:
        raise ArtifactMissing(
            "there is no native module here",
            why="this is a bare checkout, or the package was never built",
            fix="pip install .   (for the reference target: DEEPINFER_ACCELERATOR=cpu pip install .)",
        )
    place = os.path.join(os.path.dirname(spec.origin), FILE)
    try:
        with open(place, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        fix = "reinstall: pip install --no-cache-dir --force-reinstall deepinfer (or . in a checkout)"
        raise RecordBroken("%s cannot be read: %s" % (place, error.strerror), fix=fix) from None
    installed = Installed(spec.origin, parse(text, place))
    _read_distribution(installed)
    return installed


def _read_distribution(installed: Installed) -> None:
    """Hashes, installer and origin from the dist-info folder beside the module; without one they stay empty."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        own = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return
    installed.version = own.version
    installed.installer = (own.read_text("INSTALLER") or "pip").strip()
    for file in own.files or []:
        if file.hash is not None:
            installed.hashes[os.path.realpath(str(own.locate_file(file)))] = "%s=%s" % (file.hash.mode, file.hash.value)
    text = own.read_text("direct_url.json")
    try:
        direct = json.loads(text) if text else {}
    except ValueError:
        direct = {}
    url = direct.get("url", "")
    if isinstance(url, str) and url.startswith("file://"):
        installed.origin = url[len("file://") :]
        installed.editable = bool(direct.get("dir_info", {}).get("editable"))


def digest(path: str) -> str:
    """``sha256=<urlsafe base64>`` of a file, in the form of RECORD."""
    import base64
    import hashlib

    with open(path, "rb") as file:
        raw = hashlib.sha256(file.read()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def hex_digest(path: str) -> str:
    """SHA-256 of a file in hexadecimal."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def check_module(installed: Installed) -> None:
    """The native module and its record are byte for byte what was installed."""
    folder = os.path.dirname(installed.module)
    for path in (installed.module, os.path.join(folder, FILE)):
        known = installed.hashes.get(os.path.realpath(path))
        if known is None or not known.startswith("sha256="):
            raise ArtifactChanged("%s is not listed in RECORD" % path, fix=installed.reinstall())
        if digest(path) != known:
            raise ArtifactChanged("%s was changed after it was installed" % path, fix=installed.reinstall())
