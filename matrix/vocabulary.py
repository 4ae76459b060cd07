"""The closed vocabularies of the matrix: a word that is not here is a finding, never a guess."""

from __future__ import annotations

STATUSES: dict[str, str] = {
    "draft": "proposed by an RFC; nothing is promised and nothing is built",
    "accepted": "the RFC's design is agreed; bring-up goes on, nothing is built by pip",
    "supported": "a failure there blocks a release; `pip install` builds it",
    "deprecated": "built with a warning, until the date in `removal`",
    "removed": "no longer built; `removal.last_good` is the last version that was",
    "rejected": "the RFC was turned down, for the given reason",
    "withdrawn": "the RFC's authors took it back, for the given reason",
    "unsupported": "a known neighbor that no RFC proposes, with the reason why it is not built",
    "reference": "built only when asked for by name; never matched by detection",
}
BUILT = ("supported", "deprecated", "reference")
ACCELERATED = ("supported", "deprecated")
PROPOSED = ("draft", "accepted")
REFUSED = ("unsupported", "removed", "rejected", "withdrawn")

LIFECYCLE = ("draft", "accepted", "supported", "deprecated", "removed", "rejected", "withdrawn")
RFC_KINDS = ("device", "process")

VENDORS = ("nvidia", "ascend", "host")
TOOLKITS = {"nvidia": "cuda", "ascend": "cann"}
SOURCE_KINDS: dict[str, str] = {
    "upstream-readme": "upstream README",
    "upstream-rfc": "upstream RFC",
    "rfc": "RFC of this repository",
    "press": "press report",
    "vendor-docs": "vendor documentation",
    "kernel-module": "vendor's kernel module",
    "pci-ids": "pci.ids",
    "release-notes": "release notes",
    "log": "output of a real machine",
    "computed": "computed by us",
}
BLOCKER_KINDS = ("capacity", "kernel", "hardware", "toolkit", "scope", "evidence")
KINDS: dict[str, str] = {
    "schema": "the integer 1",
    "id": "lower-case words joined by dashes",
    "title": "text of at most 60 characters",
    "string": "text that is not empty",
    "strings": "list of distinct texts",
    "count": "integer of at least 1",
    "boolean": "true or false",
    "date": "date such as 2026-11-30, without quotes",
    "url": "text that begins with https://",
    "release": 'version such as "1.2.3"',
    "spec": 'PEP 440 bounds such as ">=13,<14"',
    "specs": "table of compiler (gcc, clang) to PEP 440 bounds",
    "toolkit": 'table { name = "cuda" or "cann", spec = PEP 440 bounds }',
    "capabilities": 'list of distinct texts such as "10.0"',
    "pci": 'table of "10de:2901" (or "ub:d800") to names of products',
    "socs": "list of distinct lower-case names, each with at most one `*`, at its end",
}
