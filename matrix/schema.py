"""What each file of the matrix may hold, as data: the loader validates by it, docs/matrix.md is rendered from it."""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.matrix.vocabulary import (
    ACCELERATED,
    BLOCKER_KINDS,
    BUILT,
    LIFECYCLE,
    PROPOSED,
    REFUSED,
    RFC_KINDS,
    SOURCE_KINDS,
    STATUSES,
    VENDORS,
)

ALWAYS: tuple[str, ...] = ("*",)
NEVER: tuple[str, ...] = ()


class Field(NamedTuple):
    """One key. ``name`` is its path; ``[]`` marks a table that repeats, ``kind`` the type or form of its value."""

    name: str
    kind: str
    doc: str
    required: tuple[str, ...] = ALWAYS  # statuses that need it; ALWAYS within its table
    sourced: bool = False
    values: tuple[str, ...] = ()


def _sources() -> tuple[Field, ...]:
    return (
        Field("source[].id", "id", "Name within the file."),
        Field("source[].kind", "string", "What kind of source it is.", values=tuple(SOURCE_KINDS)),
        Field("source[].says", "string", "What it says, in our own words."),
        Field("source[].url", "url", "Where it is, only if known for sure.", NEVER),
        Field("source[].read", "date", "The day on which it was read."),
        Field("source[].covers", "strings", "The sourced fields of this file that rest on it; may be empty."),
    )


_SCHEMA = Field("schema", "schema", "Version of this form: 1.")

ENTRY: tuple[Field, ...] = (
    _SCHEMA,
    Field("id", "id", "Name of the entry; equals the file's name."),
    Field("title", "title", "At most 60 characters, without a word that sounds like a status."),
    Field("vendor", "string", "Whose driver and toolkit it needs.", values=VENDORS),
    Field("status", "string", "Where it stands; see the table of states.", values=tuple(STATUSES)),
    Field("reason", "string", "Why it is not built, in words for its owner.", REFUSED),
    Field("rfc", "count", "Number of the RFC that proposes it.", (*PROPOSED, "rejected", "withdrawn")),
    Field(
        "accelerator",
        "string",
        "Value of DEEPINFER_ACCELERATOR that selects it; unique.",
        BUILT,
        values=("nvidia", "ascend", "cpu"),
    ),
    Field("architectures", "strings", "Build targets exactly as the compiler takes them.", BUILT, sourced=True),
    Field("partitioned", "boolean", "Whether a slice of a device (MIG, vNPU) may carry it; false until measured."),
    Field("provenance", "string", "Id of the source that the status rests on."),
    Field("match.compute_capabilities", "capabilities", "NVIDIA compute capabilities, each written out.", NEVER, True),
    Field("match.pci", "pci", "PCI `vendor:device` in lower case (or `ub:device`) to the product's name.", NEVER, True),
    Field("match.soc", "socs", "Ascend SoC names in lower case, or a prefix that ends in `*`.", NEVER, True),
    Field("require.compilers", "specs", "Compilers, where they differ from the baseline.", NEVER, True),
    Field("require.python", "spec", "Python, where it differs from the baseline.", NEVER, True),
    Field("require.toolkit", "toolkit", "Toolkit and its versions.", ACCELERATED, True),
    Field("require.driver", "spec", "Driver versions; left out where no source states any.", NEVER, True),
    Field("require.proposed", "string", "A draft's toolchain as text; shown, never judged.", NEVER, True),
    Field("waiver.date", "date", "Day on which the status was granted without evidence of ours; see rule R12."),
    Field("waiver.says", "string", "What is missing, and why the status stands all the same."),
    Field("waiver.until", "date", "Day after which `rfc check` warns; at most 90 days later."),
    Field("removal.date", "date", "Day from which it is not built any more."),
    Field("removal.last_good", "release", "Last version that builds it."),
    Field("configuration[].id", "id", "Name, unique in the whole matrix."),
    Field("configuration[].role", "string", "What the machines do.", values=("prefill", "decode", "any")),
    Field("configuration[].devices", "strings", "Names as the driver prints them."),
    Field("configuration[].count", "count", "Number of devices."),
    Field("configuration[].memory_bytes", "count", "Bytes of one device as its driver prints them.", NEVER),
    Field("configuration[].memory_source", "string", "Id of the source of `memory_bytes`.", NEVER),
    Field("configuration[].domain", "string", "How the devices hang together."),
    Field("configuration[].says", "string", "The statement, in one sentence."),
    Field("configuration[].source", "string", "Id of the source of the statement."),
    *_sources(),
)
BASELINE: tuple[Field, ...] = (
    _SCHEMA,
    Field("os", "string", "`platform.system()` of a host that can build.", ALWAYS, True),
    Field("machines", "strings", "`platform.machine()` of such a host.", ALWAYS, True),
    Field("gcc", "spec", "GCC of every accelerator target.", ALWAYS, True),
    Field("python", "spec", "Python of every accelerator target.", ALWAYS, True),
    *_sources(),
)
MODEL: tuple[Field, ...] = (
    _SCHEMA,
    Field("name", "string", "Name of the model."),
    Field("checkpoint", "string", "Repository of the default checkpoint."),
    Field("payload_bytes", "count", "Bytes of all tensors.", ALWAYS, True),
    Field("file_bytes", "count", "Bytes of all files, headers included.", ALWAYS, True),
    Field("part[].name", "string", "What the bytes hold."),
    Field("part[].bytes", "count", "Bytes of the part; the parts add up to the payload.", ALWAYS, True),
    *_sources(),
)
GUIDANCE: tuple[Field, ...] = (
    _SCHEMA,
    Field("gap[].id", "id", "Name of the gap."),
    Field("gap[].title", "string", "What is missing."),
    Field("gap[].text", "string", "When it matters, and what there is.", ALWAYS, True),
    Field("skip[].id", "id", "Name of the question."),
    Field("skip[].when", "string", "Whom it concerns."),
    Field("skip[].advice", "string", "What to do instead of installing.", ALWAYS, True),
    *_sources(),
)
VARIABLES: tuple[Field, ...] = (
    _SCHEMA,
    Field("variable[].name", "string", "Environment variable of ours."),
    Field("variable[].values", "strings", "Accepted values, if they are few.", NEVER),
    Field("variable[].says", "string", "What it does."),
    Field("key[].name", "string", "Config key of the build (`pip install . -C key=value`)."),
    Field("key[].values", "strings", "Accepted values, if they are few.", NEVER),
    Field("key[].says", "string", "What it does."),
    Field("foreign[].name", "string", "Environment variable of others that is read."),
    Field("foreign[].says", "string", "What it is read for."),
)
RFC: tuple[Field, ...] = (
    Field("number", "count", "Number; equals that of the file's name."),
    Field("title", "title", "At most 60 characters, without a word that sounds like a status."),
    Field("created", "date", "Day of the first version."),
    Field("kind", "string", "What it proposes; a device where it is left out.", NEVER, values=RFC_KINDS),
    Field("authors", "strings", "Who answers for it."),
    Field("maintainers", "strings", "Who keeps its entries working, beside the authors.", NEVER),
    Field("entries", "strings", "Ids of the entries that it proposes; none if it proposes no device."),
    Field("upstream[].url", "url", "A pull request or a commit, so that it cannot be about something else later."),
    Field("upstream[].read", "date", "The day on which it was read."),
    Field("upstream[].says", "string", "What it says, in our own words, with its figures."),
    Field("history[].status", "string", "Status that its entries took on.", values=LIFECYCLE),
    Field("history[].date", "date", "The day of it."),
    Field("history[].says", "string", "Why."),
    Field("blocker[].id", "id", "Name of the open point."),
    Field("blocker[].kind", "string", "What kind of work closes it.", values=BLOCKER_KINDS),
    Field("blocker[].text", "string", "One sentence that says what is missing."),
)
APPROVAL: tuple[Field, ...] = (
    Field("approval[].status", "string", "Status that is approved.", values=LIFECYCLE),
    Field("approval[].by", "string", "Who approves: neither an author nor a maintainer."),
    Field("approval[].date", "date", "The day of it."),
    Field("approval[].note", "string", "What was looked at."),
)
FILES: dict[str, tuple[Field, ...]] = {
    "entry": ENTRY,
    "baseline": BASELINE,
    "model": MODEL,
    "guidance": GUIDANCE,
    "variables": VARIABLES,
    "rfc": RFC,
    "approval": APPROVAL,
}
# The tables that must be there, and for which statuses; a field of another table is required only where it is written.
TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "entry": {
        "match": ALWAYS,
        "source": ALWAYS,
        "require": ACCELERATED,
        "removal": ("deprecated", "removed"),
    },
    "baseline": {"source": ALWAYS},
    "model": {"part": ALWAYS, "source": ALWAYS},
    "guidance": {"gap": ALWAYS, "skip": ALWAYS, "source": ALWAYS},
    "variables": {"variable": ALWAYS, "key": ALWAYS, "foreign": ALWAYS},
    "rfc": {},  # what is needed depends on the status of its entries: see rfc_rules.py
    "approval": {"approval": ALWAYS},
}


def cover_name(field: Field) -> str:
    """How a source's ``covers`` names a field: a table that repeats is covered as a whole."""
    return field.name.partition("[]")[0]
