"""site/index.html: the matrix and its reading box as one file without any other, a pure function of the tree."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from pathlib import Path
from typing import Any

from deepinfer.errors import DeepInferError
from deepinfer.matrix import page_sections
from deepinfer.matrix.compiled import index_of
from deepinfer.matrix.load import Tree
from deepinfer.matrix.vocabulary import ACCELERATED

# Beside this file, never below the tree that is rendered: it is part of the renderer.
TEMPLATES = Path(__file__).resolve().parent / "templates"


class NoTemplate(DeepInferError):
    """A template of site/index.html is missing or cannot be read."""

    code = "DI119"
    exit_code = 1


def page_text(tree: Tree) -> str:
    """The whole page."""
    index = index_of(tree)
    style, script = _template("page.css"), _template("page.js")
    data = json.dumps(_data(index), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    parts = {
        **page_sections.sections(index, tree),
        "model": escape(index["model"]["name"]),
        "checkpoint": escape(index["model"]["checkpoint"]),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        # "<" could end the element that holds the data.
        "data": data.replace("<", "\\u003c"),
        "digest": hashlib.sha256(data.encode("utf-8")).hexdigest()[:12],
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _template("page.html"))


def _template(name: str) -> str:
    try:
        return (TEMPLATES / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoTemplate(
            "%s cannot be read: %s" % (TEMPLATES / name, error),
            why="an installed package ships no template of the page",
            fix="render with the checkout's own tools, or: git checkout -- matrix/templates",
        ) from None


def _hash(text: str) -> str:
    """As a Content-Security-Policy names the one script, or style, that may run."""
    return "sha256-%s" % base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _data(index: dict[str, Any]) -> dict[str, Any]:
    """What the reading box knows of the matrix."""
    built = [entry for entry in index["entries"] if entry["status"] in ACCELERATED]
    # NVIDIA first, as in the probe's own words.
    built.sort(key=lambda entry: (entry["vendor"] != "nvidia", entry["id"]))
    advice = next((item["advice"] for item in index["skip"] if item["id"] == "no-accelerator"), "")
    return {
        "payload_bytes": index["model"]["payload_bytes"],
        "built": [entry["title"] for entry in built],
        "target": built[0]["id"] if built else "host-cpu",
        "advice": advice,
        "rfcs": {
            number: {"title": rfc["title"], "upstream": rfc["upstream"], "blockers": page_sections.open_blockers(rfc)}
            for number, rfc in index["rfcs"].items()
        },
        "entries": {entry["id"]: _entry(entry) for entry in index["entries"]},
    }


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    match = {"capabilities": entry["match"]["compute_capabilities"], "soc": entry["match"]["soc"]}
    return {**{key: entry[key] for key in ("title", "status", "rfc")}, "match": match}
