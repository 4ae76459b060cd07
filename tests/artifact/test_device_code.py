"""Architectures are read out of real binaries, and nothing is believed of a damaged one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.probes.artifact.device_code import Malformed, read

KERNEL = "__global__ void scale(float* x, float a) { x[threadIdx.x] *= a; }\n"
NVCC = shutil.which("nvcc")


def compiled(folder: Path, *options: str) -> bytes:
    if NVCC is None:
        pytest.skip("not run: no nvcc here")
    source, out = folder / "kernel.cu", folder / "kernel.so"
    source.write_text(KERNEL, encoding="utf-8")
    words = [NVCC, "-std=c++17", *options, "-Xcompiler", "-fPIC", "-shared", str(source), "-o", str(out)]
    subprocess.run(words, check=True, capture_output=True)
    return out.read_bytes()


CASES = {
    "100a": (["-gencode", "arch=compute_100a,code=sm_100a"], {"100a"}, set()),
    "100f": (["-gencode", "arch=compute_100f,code=sm_100f"], {"100f"}, set()),
    "100 and ptx": (["-gencode", "arch=compute_100,code=[sm_100,compute_100]"], {"100"}, {"compute_100"}),
    "two": (
        ["-gencode", "arch=compute_90a,code=sm_90a", "-gencode", "arch=compute_100a,code=sm_100a"],
        {"90a", "100a"},
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_suffixes_are_told_apart(case: str, tmp_path: Path) -> None:
    options, cubins, ptx = CASES[case]
    found = read(compiled(tmp_path, "-Xfatbin=-compress-mode=none", *options))
    assert found.cubins == cubins
    assert found.ptx == ptx


def test_a_compressed_cubin_is_refused_not_guessed(tmp_path: Path) -> None:
    data = compiled(tmp_path, "-Xfatbin=-compress-all", "-gencode", "arch=compute_100a,code=sm_100a")
    with pytest.raises(Malformed, match="compressed"):
        read(data)


def test_a_binary_without_device_code_has_none() -> None:
    found = read(Path(sys.executable).resolve().read_bytes())
    assert (found.cubins, found.ptx) == (set(), set())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_give_an_answer_or_a_refusal(data: bytes, headed: bool) -> None:
    try:
        read(b"\x7fELF\x02\x01" + data if headed else data)
    except Malformed:
        return


def test_every_truncation_of_a_real_binary_is_survived(tmp_path: Path) -> None:
    data = compiled(tmp_path, "-gencode", "arch=compute_100a,code=sm_100a")
    for size in range(0, len(data), 40009):
        try:
            read(data[:size])
        except Malformed:
            continue
