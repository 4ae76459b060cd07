"""Compiles a tree without findings into the dict that ``index.json`` holds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from deepinfer.matrix.evidence import Evidence, read_all
from deepinfer.matrix.gates import engine_of
from deepinfer.matrix.index import SCHEMA, source_names
from deepinfer.matrix.load import Tree
from deepinfer.matrix.specifier import compile_spec
from deepinfer.matrix.validate import Document
from deepinfer.matrix.vocabulary import SOURCE_KINDS


def index_text(tree: Tree) -> str:
    """The bytes of ``index.json`` as text: sorted, so that equal trees give equal files."""
    return json.dumps(index_of(tree), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def index_of(tree: Tree) -> dict[str, Any]:
    """The compiled matrix. Call it only on a tree in which neither loading nor the rules found anything."""
    baseline, model, guidance, variables = (tree.of(k)[0].data for k in ("baseline", "model", "guidance", "variables"))
    return {
        "schema": SCHEMA,
        "generated": "by `python -m deepinfer.matrix render`; do not edit",
        "sources": {
            name: hashlib.sha256((tree.root / name).read_bytes()).hexdigest() for name in source_names(str(tree.root))
        },
        "baseline": {
            "os": baseline["os"],
            "machines": baseline["machines"],
            "gcc": compile_spec(baseline["gcc"]),
            "python": compile_spec(baseline["python"]),
        },
        "model": {
            **{key: model[key] for key in ("name", "checkpoint", "payload_bytes", "file_bytes")},
            "parts": [{"name": part["name"], "bytes": part["bytes"]} for part in model["part"]],
        },
        "skip": guidance["skip"],
        "gaps": [{key: gap[key] for key in ("id", "title", "text")} for gap in guidance["gap"]],
        "entries": compiled_entries(tree),
        "rfcs": {str(document.data["number"]): _rfc(document) for document in tree.of("rfc")},
        "variables": _named(variables["variable"]),
        "keys": _named(variables["key"]),
    }


def compiled_entries(tree: Tree) -> list[dict[str, Any]]:
    """The entries as they are compiled, each with what our engine does there."""
    baseline = tree.of("baseline")[0].data
    entries = [_entry(document.data, baseline) for document in tree.of("entry")]
    evidence: list[Evidence] = read_all(tree.root, [entry["id"] for entry in entries])
    return [{**entry, "engine": engine_of(tree.root, entry, evidence)} for entry in entries]


def provenance(entry: dict[str, Any]) -> str:
    """Who says what the status says, and when that was read."""
    source = next(source for source in entry["source"] if source["id"] == entry["provenance"])
    return "%s, read %s" % (SOURCE_KINDS[source["kind"]], source["read"].isoformat())


def _entry(entry: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    match, require, removal = (entry.get(key, {}) for key in ("match", "require", "removal"))
    toolkit = require.get("toolkit")
    compilers = require.get("compilers", {"gcc": baseline["gcc"]})
    return {
        **{key: entry[key] for key in ("id", "title", "vendor", "status", "partitioned")},
        **{key: entry.get(key) for key in ("reason", "rfc", "accelerator")},
        "match": {
            "compute_capabilities": match.get("compute_capabilities", []),
            "pci": match.get("pci", {}),
            "soc": match.get("soc", []),
        },
        "architectures": entry.get("architectures", []),
        "require": {
            "compilers": {name: compile_spec(text) for name, text in compilers.items()},
            "python": compile_spec(require.get("python", baseline["python"])),
            "toolkit": {"name": toolkit["name"], "spec": compile_spec(toolkit["spec"])} if toolkit else None,
            "driver": compile_spec(require["driver"]) if "driver" in require else None,
            "proposed": require.get("proposed"),
        },
        "removal": {"date": removal["date"].isoformat(), "last_good": removal["last_good"]} if removal else None,
        "configurations": [_configuration(item) for item in entry.get("configuration", [])],
        "provenance": provenance(entry),
    }


def _configuration(item: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "role", "devices", "count", "domain", "says", "source")
    return {**{key: item[key] for key in keys}, "memory_bytes": item.get("memory_bytes")}


def _rfc(document: Document) -> dict[str, Any]:
    rfc = document.data
    return {
        "title": rfc["title"],
        "file": document.path,
        "entries": rfc["entries"],
        "upstream": rfc["upstream"][0]["url"] if "upstream" in rfc else None,
        "blockers": [{key: item[key] for key in ("id", "kind", "text")} for item in rfc.get("blocker", [])],
    }


def _named(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["name"]: {key: value for key, value in item.items() if key != "name"} for item in items}
