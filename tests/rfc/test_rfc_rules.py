"""Every rule of the RFC path has mutants of the real tree, each of which is exactly one finding, of that rule."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from deepinfer.matrix.load import ROOT
from deepinfer.matrix.rfc_check import RULES, WARNINGS, check

RFC1, RFC46, RFC47 = "rfcs/0001-rfc-process.md", "rfcs/0046-ascend-910c.md", "rfcs/0047-sm90.md"
SM90, SM100, C910 = ("matrix/entries/%s.toml" % name for name in ("nvidia-sm90", "nvidia-sm100", "ascend-910c"))
APPROVAL = '[[approval]]\nstatus = "accepted"\nby = "%s"\ndate = %s\nnote = "Read it."\n'
STEP = '[[history]]\nstatus = "%s"\ndate = 2026-11-30\nsays = "Next."\n\n[[blocker]]\nid = "capacity"'
GATES = "probe, build, conformance, smoke, bench"
HISTORY = """\
[[history]]
status = "draft"
date = 2026-11-30
says = "Upstream's pull request is open; no gate had been run by us."

"""
WAIVER = """\
[waiver]
date = 2026-11-30
until = 2027-02-28
says = "Status is quoted from the upstream README. No gate of ours has run on this device yet."

"""
SMALL = """\
[[configuration]]
id = "one-die"
role = "any"
devices = ["Ascend910"]
count = 1
memory_bytes = 68719476736
memory_source = "rfc"
domain = "not stated"
says = "One die."
source = "rfc"

[[source]]
id = "rfc"
"""
# rule, edits (file, old, new), words of the message
MUTANTS = [
    ("R1", [(RFC47, "H100, H200, H20 and GH200 are", "FILL: these are")], "a blank is left"),
    ("R1", [(SM90, 'domain = "not stated"', 'domain = "FILL: links"')], "a blank is left: FILL: links"),
    ("R2", [(RFC47, "## Plan\n", "## Plans\n")], "section ## Plan"),
    ("R2", [(RFC46, "## Capacity\n", "## Capacity\n\n<!-- later -->\n\n## Room\n")], "## Capacity is missing or empty"),
    ("R2", [(RFC1, 'kind = "process"\n', "")], "lists no entry"),
    ("R3", [(SM90, 'status = "draft"', 'status = "accepted"')], "ends with draft, its entries are accepted"),
    ("R3", [(SM100, 'provenance = "readme"', 'provenance = "press"')], "by no RFC, and not by upstream's README"),
    ("R3", [(RFC47, HISTORY, "")], "it has no history"),
    (
        "R4",
        [(RFC47, 'status = "draft"\ndate = 2026-11-30', 'status = "draft"\ndate = 2026-11-29')],
        "older than the RFC",
    ),
    ("R4", [(RFC47, '[[blocker]]\nid = "capacity"', STEP % "draft")], "from draft to draft is no single step"),
    (
        "R6",
        [(RFC47, '[[blocker]]\nid = "capacity"', STEP % "accepted"), (SM90, 'status = "draft"', 'status = "accepted"')],
        "nobody approved the step to accepted",
    ),
    ("R6", [("rfcs/approvals/0099.toml", "", APPROVAL % ("ada", "2026-11-30"))], "no such RFC"),
    ("R6", [("rfcs/approvals/47.toml", "", APPROVAL % ("ada", "2026-11-30"))], "no such RFC"),
    ("R7", [("rfcs/approvals/0047.toml", "", APPROVAL % ("@deepinfer Maintainers", "2026-11-30"))], "is an author"),
    (
        "R7",
        [
            (RFC47, "entries =", 'maintainers = ["@ada"]\nentries ='),
            ("rfcs/approvals/0047.toml", "", APPROVAL % ("Ada", "2026-11-30")),
        ],
        "Ada is an author or a maintainer",
    ),
    (
        "R8",
        [(C910, '[[source]]\nid = "rfc"\n', SMALL), (RFC46, 'kind = "capacity"', 'kind = "evidence"')],
        "bytes are missing, and no blocker says so",
    ),
    ("R9", [(RFC47, "| | 92733257384 |", "| | 92733257385 |")], "92733257385 is in no source"),
    ("R9", [(RFC47, "counts about 499 GB", "counts about 498 GB")], "no source of it says 498 GB"),
    ("R10", [(RFC47, "DeepInfer/pull/47", "DeepInfer/issues/47")], "neither a pull request nor a commit"),
    ("R10", [(SM90, "DeepInfer/pull/47", "DeepInfer")], "neither a pull request nor a commit"),
    ("R11", [(RFC47, 'id = "kernels-in-the-model"', 'id = "toolkit"')], "blocker 'toolkit' is there twice"),
    ("R12", [(SM100, "until = 2027-02-28", "until = 2027-03-01")], "ends by 2027-02-28"),
    ("R12", [(SM100, WAIVER, "")], "these gates are open: capacity, probe, build, conformance, smoke, bench"),
    ("R22", [("matrix/index.json", '"engine": "compiles"', '"engine": "runs (9 ops)"')], "out of date"),
    ("R22", [("rfcs/README.md", "open blockers", "blockers")], "out of date"),
    # the bad input that the matrix's own rules find
    ("M4", [(SM90, 'status = "draft"', 'status = "drafft"')], "did you mean 'draft'?"),
    ("M2", [(RFC47, "created =", "creatd = 1\ncreated =")], "did you mean 'created'?"),
    ("M2", [("rfcs/approvals/0047.toml", "", APPROVAL % ("ada", "2026-11-30") + 'who = "x"\n')], "unknown key 'who'"),
    (
        "M3",
        [("rfcs/approvals/0047.toml", "", '[[approval]]\nstatus = "accepted"\nby = "ada"\ndate = 2026-11-30\n')],
        "note",
    ),
    ("M7", [(C910, '"19e5:d803" = "Ascend 910C"', '"19e5:d803" = "Ascend 910C"\n"19e5:d806" = "x"')], "is matched by"),
]


@pytest.mark.parametrize(
    ("rule", "edits", "words"), MUTANTS, ids=["%s-%d" % (mutant[0], number) for number, mutant in enumerate(MUTANTS)]
)
def test_a_mutant_is_one_finding(rule, edits, words, edit, findings):
    for name, old, new in edits:
        edit(name, old, new)
    found = findings()
    assert [finding.rule for finding in found] == [rule], "\n".join(map(str, found))
    assert words in found[0].message
    assert found[0].fix and found[0].line >= 1


def test_the_tree_has_no_finding_and_is_checked_within_a_second():
    began = time.perf_counter()
    report = check(ROOT, dt.datetime.now(dt.timezone.utc).date())
    seconds = time.perf_counter() - began
    assert [str(finding) for finding in report.findings] == []
    assert seconds < 1.0


def test_every_rule_has_a_mutant():
    from test_rfc_evidence import MUTANTS as OF_EVIDENCE

    elsewhere = {"R5", "R12", "R20", "R21"}  # test_rfc_base, test_rfc_evidence
    assert {mutant[0] for mutant in MUTANTS} | {mutant[0] for mutant in OF_EVIDENCE} | elsewhere >= set(RULES)


def test_two_rfcs_with_one_number_are_named(root, findings):
    (root / "rfcs/0047-other.md").write_text((root / RFC47).read_text())
    assert {finding.path for finding in findings() if "number 47 is taken twice" in finding.message} == {
        RFC47,
        "rfcs/0047-other.md",
    }


def test_an_entry_that_nothing_proposes_is_an_orphan(edit, findings):
    edit(RFC47, 'entries = ["nvidia-sm90"]', "entries = []")
    assert any(finding.rule == "M10" and "does not list nvidia-sm90" in finding.message for finding in findings())


def test_an_approved_step_passes_every_rule_until_rendered(root, edit, findings):
    edit(RFC47, '[[blocker]]\nid = "capacity"', STEP % "accepted")
    edit(SM90, 'status = "draft"', 'status = "accepted"')
    edit("rfcs/approvals/0047.toml", "", APPROVAL % ("grace", "2026-11-30"))
    assert {finding.rule for finding in findings()} == {"R22"}
    from deepinfer.matrix.render import render

    render(root)
    assert findings() == []


def test_an_approval_is_not_younger_than_the_step(edit, findings):
    edit(RFC47, '[[blocker]]\nid = "capacity"', STEP % "accepted")
    edit(SM90, 'status = "draft"', 'status = "accepted"')
    edit("rfcs/approvals/0047.toml", "", APPROVAL % ("grace", "2026-12-01"))
    assert [finding.rule for finding in findings()] == ["R6"]


def test_support_by_an_rfc_needs_every_gate(root, edit, findings):
    text = (root / RFC47).read_text()
    front, body = text[: text.index("[[blocker]]")], text[text.rindex("+++") :]
    steps = "".join(STEP.partition("\n\n")[0] % status + "\n\n" for status in ("accepted", "supported"))
    (root / RFC47).write_text(front + steps + body)
    edit(SM90, 'status = "draft"', 'status = "supported"')
    edit(SM100, 'accelerator = "nvidia"\n', "")
    edit(SM100, 'status = "supported"', 'status = "unsupported"\nreason = "x"')
    edit(SM100, '[require]\ntoolkit = { name = "cuda", spec = ">=13,<14" }\ndriver = ">=580.65.06"\n', "")
    edit(SM100, WAIVER, "")
    edit(SM100, '"require.toolkit"', "")
    edit(SM100, '"require.driver"', "")
    edit(SM90, "partitioned", 'accelerator = "nvidia"\npartitioned')
    edit(SM90, "covers = []", 'covers = ["require.toolkit"]')
    edit(SM90, "[match]", '[require]\ntoolkit = { name = "cuda", spec = ">=13" }\n\n[match]')
    for status in ("accepted", "supported"):
        edit("rfcs/approvals/0047.toml", "", (APPROVAL % ("grace", "2026-11-30")).replace("accepted", status))
    open_gates = [finding.message for finding in findings() if finding.rule == "R12"]
    assert open_gates == ["supported without a waiver, and these gates are open: %s" % GATES]
    edit(SM90, "[match]", '[waiver]\ndate = 2026-11-30\nuntil = 2026-12-30\nsays = "x"\n\n[match]')
    assert "R12" not in {finding.rule for finding in findings()}


@pytest.mark.parametrize(
    ("day", "expected"), [("2026-12-01", set()), ("2027-03-01", {"W1"}), ("2027-06-01", {"W1", "W2"})]
)
def test_time_only_warns(day, expected, root):
    report = check(root, dt.date.fromisoformat(day))
    assert report.findings == []
    assert {warning.rule for warning in report.warnings} == expected
    assert expected <= set(WARNINGS)


def test_capacity_is_printed_in_bytes(root):
    rows = check(root, dt.date(2026, 12, 1)).capacity
    assert [(row["memory_bytes"], row["headroom_bytes"]) for row in rows] == [(603019280384, 92733257384)]
