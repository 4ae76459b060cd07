"""What is read in a disassembly, and what a folder of kernels may ask of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build_support import machine_code

LISTING = """
	Function : _Z3addPf
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;       /* 0x0000000402047981 */
        /*0020*/             @UP1  UTMALDG.3D [UR4], [UR6], desc[UR8] ;   /* 0x0000000402047981 */
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/                   STL [R1], R4 ;                         /* 0x0000000401007387 */
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
"""


def test_mnemonics_are_counted_behind_their_predicates() -> None:
    found = machine_code.mnemonics(LISTING)
    assert found == {"LDC": 1, "LDG.E.128": 1, "UTMALDG.3D": 1, "HGMMA.64x128x16.F32.BF16": 2, "STL": 1}


@pytest.mark.parametrize(
    ("rules", "problems"),
    [
        ('[sm_90a]\nrequire = ["HGMMA", "LDG.E.128"]\n', []),
        ('[sm_90a]\nrequire = ["QGMMA"]\nforbid = ["LDL", "STL"]\n', ["no QGMMA", "1 x STL"]),
        ("[sm_100a]\n", ["sass.toml has no [sm_90a]"]),
        ('[sm_90a]\nforbids = ["LDL"]\n', ["sass.toml asks for 'forbids', which is neither require nor forbid"]),
        (None, ["there is no sass.toml"]),
    ],
)
def test_a_folder_says_what_its_code_has_and_has_not(tmp_path: Path, rules: str | None, problems: list[str]) -> None:
    if rules is not None:
        (tmp_path / "sass.toml").write_text(rules)
    assert machine_code.judge(tmp_path, "90a", machine_code.mnemonics(LISTING)) == problems


def test_every_folder_of_kernels_has_rules_for_every_architecture() -> None:
    found = machine_code.folders(machine_code.ROOT)
    assert found
    for folder in found:
        for arch in machine_code.ARCHITECTURES:
            assert not [one for one in machine_code.judge(folder, arch, {}) if "sass.toml" in one], folder.name


@pytest.mark.skipif(
    shutil.which("nvcc") is None or machine_code.disassembler() is None, reason="not run: no nvcc or no cuobjdump"
)
def test_a_kernel_is_compiled_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert machine_code.main(["dequant"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["dequant", "sm_90a"], ["dequant", "sm_100a"]]
    assert all(line.endswith("as said") for line in lines)


def test_code_without_instructions_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "sass.toml").write_text("[sm_90a]\n")
    assert machine_code.judge(tmp_path, "90a", {}) == ["no instruction was read"]


@pytest.mark.skipif(
    shutil.which("nvcc") is None or machine_code.disassembler() is None, reason="not run: no nvcc or no cuobjdump"
)
def test_an_unknown_kernel_is_refused_beside_a_known_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        machine_code.main(["nope", "topk"])
    assert "no kernel is called nope" in capsys.readouterr().err


def test_without_tools_it_is_not_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine_code, "disassembler", lambda: None)
    assert machine_code.main([]) == 3
    assert "not run:" in capsys.readouterr().err
