"""The gate against this machine's real compilers and, where there is one, its real nvcc."""

from __future__ import annotations

import shutil

import pytest

from deepinfer.matrix.index import load_index
from deepinfer.probes.facts import compiler, cuda
from deepinfer.probes.judge import judge
from deepinfer.probes.live import LiveView
from deepinfer.probes.wish import Wish


def test_the_default_compiler_is_identified_by_its_macros() -> None:
    if shutil.which("g++") is None:
        pytest.skip("not run: no g++ here")
    found = compiler.on_path(LiveView())
    assert found.family == "gcc"
    assert found.version >= (8,)
    assert found.machine == LiveView().machine().value


def test_a_real_toolkit_is_found_behind_whatever_starts_it() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("not run: no nvcc here")
    kit = cuda.on_path(LiveView())
    assert kit is not None
    assert kit.missing == []
    assert kit.nvcc_release == kit.version[:2]
    assert kit.architectures
    assert kit.max_gcc is not None


def test_a_named_target_is_judged_with_the_compiler_that_is_here() -> None:
    wish = Wish()
    wish.target, wish.named_by = "nvidia-sm100", "-C deepinfer.target"
    verdict = judge(LiveView(), load_index(), wish, aspect="build")
    host = next(finding for finding in verdict.findings if finding.id == "compiler.host")
    chosen = verdict.toolchain.compiler
    assert host.needed == "GCC >=13.0"
    assert (host.outcome == "pass") == (chosen.family == "gcc" and chosen.version >= (13,))
    assert chosen.problem or chosen.label in host.found
