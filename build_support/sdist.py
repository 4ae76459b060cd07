"""The source distribution: the tree's own files, links kept as links, the same bytes for the same tree."""

from __future__ import annotations

import io
import os
import tarfile

from build_support.metadata import ROOT, core_metadata, project

CONTENT = (
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "CMakeLists.txt",
    "csrc",
    "deepinfer",
    "matrix",
    "probes",
    "engine",
    "rfcs",
    "build_support",
    "docs",
    "bench",
    "examples",
    "tests",
)
_LEFT_OUT = ("__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache")
_EPOCH = 1767225600  # 2026-01-01: time stamps must not differ between two builds of one tree


def build(folder: str) -> str:
    """Write ``<name>-<version>.tar.gz`` into ``folder`` and return its file name."""
    import gzip

    table = project()
    base = "%s-%s" % (table["name"], table["version"])
    name = base + ".tar.gz"
    partial = os.path.join(folder, name + ".part")
    with open(partial, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=_EPOCH, filename="") as packed:
        _fill(packed, base)
    os.replace(partial, os.path.join(folder, name))
    return name


def _fill(packed: io.BufferedIOBase, base: str) -> None:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add_text(archive, base + "/PKG-INFO", core_metadata())
        for top in CONTENT:
            for path in _walk(top):
                _add(archive, base, path)


def _walk(path: str) -> list[str]:
    """``path`` and what lies under it, sorted; links are not followed."""
    full = os.path.join(ROOT, path)
    if os.path.islink(full) or not os.path.isdir(full):
        return [path] if os.path.lexists(full) else []
    found = []
    for name in sorted(os.listdir(full)):
        if name not in _LEFT_OUT and not name.endswith((".pyc", ".part")):
            found += _walk(path + "/" + name)
    return found


def _add(archive: tarfile.TarFile, base: str, path: str) -> None:
    full = os.path.join(ROOT, path)
    info = archive.gettarinfo(full, arcname="%s/%s" % (base, path))
    _neutral(info)
    if info.isreg():
        with open(full, "rb") as file:
            archive.addfile(info, file)
    else:
        archive.addfile(info)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8")
    info = tarfile.TarInfo(name)
    info.size = len(data)
    _neutral(info)
    archive.addfile(info, io.BytesIO(data))


def _neutral(info: tarfile.TarInfo) -> None:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = _EPOCH
    info.mode = 0o755 if info.mode & 0o100 else 0o644
