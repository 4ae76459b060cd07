"""The rules, by id. Every rule looks at every file on every run; each has a mutant in the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deepinfer.matrix import entry_rules, file_rules
from deepinfer.matrix.findings import Finding
from deepinfer.matrix.load import Tree

Rule = Callable[[Tree], Iterator[Finding]]
# Rules without a function are the loader's.
RULES: dict[str, tuple[str, Rule | None]] = {
    "M1": ("A file can be read: UTF-8, TOML, and in an RFC front matter between +++ lines.", None),
    "M2": ("Nothing is unknown: every key is in the schema, every TOML file of matrix/ has a kind.", None),
    "M3": ("Every required field, table and file is there.", None),
    "M4": ("Every value has its declared form or is one of its declared words.", None),
    "M5": ("Version bounds are PEP 440 and use >=, >, <, <=, == or ==X.* with plain releases.", None),
    "M6": ("Ids and numbers equal the file's name and are unique.", file_rules.names),
    "M7": ("No device is matched by two entries.", entry_rules.matches),
    "M8": ("An accelerator value belongs to its vendor and selects one entry.", entry_rules.accelerators),
    "M9": ("The status decides which fields are there; what is built names architectures.", entry_rules.status_fields),
    "M10": ("Entry and RFC name each other.", file_rules.rfc_links),
    "M11": ("Every sourced field is covered by a source, and sources cover only such fields.", file_rules.coverage),
    "M12": ("Source ids are unique in their file, and every reference to one resolves.", file_rules.source_names),
    "M13": ("Dates are plausible, and a removal is announced before it happens.", file_rules.dates),
    "M14": ("Matches and toolkit fit the vendor.", entry_rules.vendors),
    "M15": ("Every entry can be matched, but the reference never.", entry_rules.reachable),
    "M16": ("Memory in bytes has a source of its own.", entry_rules.memory),
    "M17": ("Variables and keys are unique; DEEPINFER_ACCELERATOR takes what entries answer to.", file_rules.variables),
    "M18": ("The model's parts add up to its payload, and files are larger than it.", file_rules.model_bytes),
    "M19": ("Titles and blockers hold no word that sounds like a status or a promise.", file_rules.words),
}


def check(tree: Tree) -> list[Finding]:
    """Everything wrong with the tree, in the order of the files: what loading found and what the rules find."""
    found = list(tree.findings)
    for _, rule in RULES.values():
        if rule is not None:
            found.extend(rule(tree))
    return sorted(found)
