"""Core metadata (version 2.4) from the static ``[project]`` table of pyproject.toml."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def project() -> dict[str, Any]:
    """The ``[project]`` table."""
    if sys.version_info < (3, 11):
        raise SystemExit(
            "DI302: this is Python %d.%d; DeepInfer needs CPython 3.12\n"
            "  fix: python3.12 -m pip install .   (the probe also runs here: python3 -m deepinfer.probe)"
            % sys.version_info[:2]
        )
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def core_metadata() -> str:
    """The text of PKG-INFO and METADATA."""
    table = project()
    lines = [
        "Metadata-Version: 2.4",
        "Name: %s" % table["name"],
        "Version: %s" % table["version"],
        "Summary: %s" % table["description"],
        "License-Expression: %s" % table["license"],
        "Requires-Python: %s" % table["requires-python"],
    ]
    lines += ["License-File: %s" % name for name in table["license-files"]]
    lines += ["Keywords: %s" % ",".join(table["keywords"])]
    lines += ["Classifier: %s" % name for name in table["classifiers"]]
    lines += ["Project-URL: %s, %s" % pair for pair in table.get("urls", {}).items()]
    lines += ["Requires-Dist: %s" % name for name in table.get("dependencies", [])]
    for extra, names in table.get("optional-dependencies", {}).items():
        lines.append("Provides-Extra: %s" % extra)
        lines += ["Requires-Dist: %s; extra == '%s'" % (name, extra) for name in names]
    with open(os.path.join(ROOT, table["readme"]), encoding="utf-8") as file:
        description = file.read()
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", description])


def dist_info_name() -> str:
    """``deepinfer-0.1.0.dist-info``."""
    table = project()
    return "%s-%s.dist-info" % (table["name"].replace("-", "_"), table["version"])
