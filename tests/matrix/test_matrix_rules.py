"""Every rule has at least one mutant of the real matrix that it, and it by its id and place, objects to."""

from __future__ import annotations

import pytest

from deepinfer.matrix.load import load
from deepinfer.matrix.rules import RULES, check

SM100, SM103, SM90 = ("matrix/entries/nvidia-%s.toml" % name for name in ("sm100", "sm103", "sm90"))
ASCEND, C910, CPU = ("matrix/entries/%s.toml" % name for name in ("ascend-950", "ascend-910c", "host-cpu"))
RFC46, RFC47 = "rfcs/0046-ascend-910c.md", "rfcs/0047-sm90.md"
MODEL, VARIABLES = "matrix/model.toml", "matrix/variables.toml"

# rule, file that is edited, old text, new text, words of the message
MUTANTS = [
    ("M1", SM100, 'id = "nvidia-sm100"', 'id = "nvidia-sm100', "not TOML"),
    ("M1", RFC46, "+++\nnumber", "number", "first line is not +++"),
    ("M2", SM100, "partitioned = false", "partitioned = false\npartitoned = true", "did you mean 'partitioned'?"),
    ("M2", SM100, 'role = "prefill"', 'role = "prefill"\nroll = "x"', "unknown key 'roll'"),
    ("M3", SM100, 'vendor = "nvidia"\n', "", "vendor is missing"),
    ("M3", SM103, "reason = ", "reasn = ", "reason is missing"),
    ("M3", SM100, "[require]\n", "[requires]\n", "[require] is missing"),
    ("M4", SM100, 'status = "supported"', 'status = "suported"', "did you mean 'supported'?"),
    ("M4", SM100, 'compute_capabilities = ["10.0"]', "compute_capabilities = [10.0]", "has another form"),
    ("M4", SM90, "memory_bytes = 150754820096", 'memory_bytes = "141 GB"', "integer of at least 1"),
    ("M4", SM90, "count = 4", "count = true", "integer of at least 1"),
    ("M4", ASCEND, '"19e5:d806"', '"19E5:D806"', "match.pci has another form"),
    ("M5", SM100, ">=13,<14", "~=13.0", "readers cannot compare"),
    ("M5", SM100, ">=580.65.06", "580 or newer", "not PEP 440"),
    ("M6", SM100, 'id = "nvidia-sm100"', 'id = "nvidia-sm101"', "is not the file's name"),
    ("M6", RFC46, "number = 46", "number = 48", "not that of the file's name"),
    ("M6", SM90, 'id = "sm90-h20-3e-4"', 'id = "sm100-decode-64"', "is already in"),
    ("M7", SM103, '["10.3"]', '["10.3", "10.0"]', "is matched by"),
    ("M7", SM103, '"10de:3182"', '"10de:2901"', "is matched by"),
    ("M7", C910, '["ascend910_93*"]', '["ascend910_9*"]', "is matched by"),
    ("M8", ASCEND, 'accelerator = "ascend"', 'accelerator = "nvidia"', "does not select a device of vendor"),
    ("M8", CPU, 'vendor = "host"\nstatus', 'vendor = "nvidia"\nstatus', "does not select a device of vendor"),
    ("M9", SM90, "rfc = 47", 'rfc = 47\naccelerator = "nvidia"', "accelerator has no place in a draft entry"),
    ("M9", SM103, "[match]", '[require]\ntoolkit = { name = "cuda", spec = ">=13" }\n[match]', "has no place"),
    ("M9", SM100, 'architectures = ["100a"]', "architectures = []", "names no architecture"),
    ("M10", SM90, "rfc = 47", "rfc = 49", "rfcs/0049-*.md does not exist"),
    ("M10", RFC47, 'entries = ["nvidia-sm90"]', 'entries = ["nvidia-sm91"]', "nvidia-sm91 does not exist"),
    ("M10", RFC47, 'entries = ["nvidia-sm90"]', 'entries = ["nvidia-sm90", "nvidia-sm80"]', "does not name this RFC"),
    ("M11", SM100, 'covers = ["require.driver"]', "covers = []", "no source covers require.driver"),
    ("M11", SM100, 'covers = ["require.driver"]', 'covers = ["require.driver", "title"]', "not a sourced field"),
    ("M11", ASCEND, 'covers = ["architectures"]', 'covers = ["architectures", "require.driver"]', "not in this file"),
    ("M12", SM100, 'provenance = "readme"', 'provenance = "hearsay"', "'hearsay'"),
    ("M12", SM100, 'id = "press"', 'id = "readme"', "is there twice"),
    ("M13", SM100, "date = 2026-11-30", "date = 2062-11-30", "2062-11-30 is not in"),
    ("M14", ASCEND, "[match]", '[match]\ncompute_capabilities = ["10.9"]', "not known by match.compute_capabilities"),
    ("M14", ASCEND, '"19e5:d806"', '"10de:d806"', "is not a device of vendor ascend"),
    ("M14", ASCEND, 'name = "cann"', 'name = "cuda"', "is not the toolkit"),
    ("M15", CPU, "[match]", '[match]\n[match.pci]\n"1234:5678" = "x"', "never matched"),
    ("M15", C910, 'soc = ["ascend910_93*"]\n\n[match.pci]\n"19e5:d803" = "Ascend 910C"', "", "no device can match"),
    ("M16", SM90, 'memory_source = "memory-log"\n', "", "belong together"),
    ("M17", VARIABLES, '"auto", "nvidia", "ascend", "cpu"', '"auto", "nvidia", "cpu"', "are not those"),
    ("M17", VARIABLES, 'name = "CXX"', 'name = "DEEPINFER_CXX"', "does not belong to [[foreign]]"),
    ("M17", VARIABLES, 'name = "CUDA_HOME"', 'name = "CXX"', "is there twice"),
    ("M18", MODEL, "bytes = 7932874632", "bytes = 7932874633", "add up to"),
    ("M18", MODEL, "file_bytes = 510296708312", "file_bytes = 510286023000", "no room for the headers"),
    ("M19", RFC47, 'title = "NVIDIA SM90 on', 'title = "Support NVIDIA SM90 on', "sounds like a status"),
    ("M19", RFC46, "Online serving is left", "Online serving works and is left", "sounds like a status"),
    ("M19", SM90, 'title = "NVIDIA SM90', 'title = "Draft NVIDIA SM90', "sounds like a status"),
]


def test_the_matrix_itself_has_no_finding():
    assert [str(finding) for finding in check(load())] == []


def test_every_rule_has_a_mutant():
    assert {mutant[0] for mutant in MUTANTS} == set(RULES)


@pytest.mark.parametrize(
    ("rule", "name", "old", "new", "words"),
    MUTANTS,
    ids=["%s-%d" % (mutant[0], number) for number, mutant in enumerate(MUTANTS)],
)
def test_a_mutant_is_found(rule, name, old, new, words, edit, findings):
    edit(name, old, new)
    found = [finding for finding in findings() if finding.rule == rule and words in finding.message]
    assert found, "\n".join(map(str, findings()))
    assert all(finding.fix and finding.line >= 1 for finding in found)


def test_two_rfcs_cannot_share_a_number(root, findings):
    text = (root / RFC46).read_text()
    (root / "rfcs/0046-other.md").write_text(text)
    assert any(finding.rule == "M6" and "taken twice" in finding.message for finding in findings())


def test_an_rfc_file_has_a_slug_in_lower_case(root, findings):
    (root / RFC46).rename(root / "rfcs/0046-Ascend.md")
    assert any(finding.rule == "M6" and "NNNN-slug.md" in finding.message for finding in findings())


def test_a_removal_is_not_before_what_was_read(edit, findings):
    edit(SM100, 'status = "supported"', 'status = "deprecated"')
    edit(SM100, "[waiver]", '[removal]\ndate = 2026-01-31\nlast_good = "0.1.0"\n\n[waiver]')
    assert any(finding.rule == "M13" and "before a source was read" in finding.message for finding in findings())
