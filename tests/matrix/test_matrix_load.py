"""Loading: all findings at once, each with the line where it stands."""

from __future__ import annotations

import pytest

from deepinfer.matrix.lines import key_lines, line_of
from deepinfer.matrix.load import NoTree, load

SM100 = "matrix/entries/nvidia-sm100.toml"


def test_one_run_reports_findings_of_several_files(edit, findings):
    edit(SM100, 'status = "supported"', 'status = "wonderful"')
    edit(SM100, "count = 64", "count = 0")
    edit("matrix/model.toml", "file_bytes", "fiel_bytes")
    edit("rfcs/0047-sm90.md", 'kind = "capacity"', 'kind = "hope"')
    edit("matrix/entries/ascend-950.toml", "[match]", "[match")
    found = findings()
    assert {"M1", "M2", "M3", "M4"} <= {finding.rule for finding in found}
    assert {finding.path for finding in found} >= {
        SM100,
        "matrix/model.toml",
        "rfcs/0047-sm90.md",
        "matrix/entries/ascend-950.toml",
    }
    assert found == sorted(found)


def test_a_syntax_error_names_its_line(root, findings):
    path = root / SM100
    lines = path.read_text().splitlines()
    lines[9] = "partitioned = perhaps"
    path.write_text("\n".join(lines))
    broken = [finding for finding in findings() if finding.rule == "M1"]
    assert [(finding.path, finding.line) for finding in broken] == [(SM100, 10)]


def test_a_finding_of_an_rfc_counts_lines_of_the_whole_file(root, edit, findings):
    edit("rfcs/0047-sm90.md", 'kind = "capacity"', 'kind = "hope"')
    lines = (root / "rfcs/0047-sm90.md").read_text().splitlines()
    (found,) = findings()
    assert lines[found.line - 1] == 'kind = "hope"'


def test_a_finding_in_a_repeated_table_names_its_own_line(root, edit, findings):
    edit(SM100, "count = 64", "count = -64")
    lines = (root / SM100).read_text().splitlines()
    (found,) = findings()
    assert lines[found.line - 1] == "count = -64"


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b"a = 1\na = 2", b"[[[[", b"x = " + b"[" * 2000])
def test_bytes_that_are_no_entry_are_findings_not_crashes(root, findings, text):
    (root / SM100).write_bytes(text)
    assert any(finding.path == SM100 for finding in findings())


def test_a_missing_file_is_a_finding(root, findings):
    (root / "matrix/model.toml").unlink()
    assert [(finding.path, finding.rule) for finding in findings()] == [("matrix/model.toml", "M3")]


def test_an_unknown_file_is_a_finding(root, findings):
    (root / "matrix/modle.toml").write_text("schema = 1\n")
    (found,) = findings()
    assert found.rule == "M2" and "did you mean 'model'?" in found.message


def test_a_folder_without_a_matrix_says_so(tmp_path):
    with pytest.raises(NoTree, match="no matrix to read"):
        load(tmp_path)


def test_key_lines_skips_strings_and_counts_tables():
    text = 'a = """\nb = 1\n"""\n[[t]]\n"x.y" = 1\n[[t]]\nz = 2\n[u.v]\nw = 3\n'
    lines = key_lines(text)
    assert ("b",) not in lines
    assert lines["t", "0", "x.y"] == 5
    assert lines["t", "1", "z"] == 7
    assert lines["u", "v", "w"] == 9
    assert line_of(lines, ("t", "1", "absent")) == 6
    assert line_of(lines, ("absent",)) == 1
