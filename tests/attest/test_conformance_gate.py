"""The conformance gate on a stand-in for the device: what the suite says is what the evidence says."""

from __future__ import annotations

import datetime as dt
import shutil

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from build_support import bringup
from deepinfer import attest
from deepinfer.engine.attest.device_ops import DeviceOps
from deepinfer.engine.ops import conformance
from deepinfer.engine.ops.dequant import fp4_reference, fp8_reference
from deepinfer.matrix.index import load_index
from deepinfer.matrix.render import render
from deepinfer.matrix.rfc_check import check
from deepinfer.matrix.rfc_status import status_of
from deepinfer.probes.live import LiveView
from deepinfer.probes.wish import entry_by_id

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="not run: nvcc is not installed")


OPS = ("dequant.fp8_block", "dequant.fp4_row")  # those that the stand-in plays


class Reference:
    """Plays the device: the references themselves, with one wrong element if asked."""

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def dequant_fp8_block(self, weight, scale, out, block_rows, *, stream=0):
        out.copy_(fp8_reference({"weight": weight, "scale": scale}, {"block_rows": block_rows})["out"].to(out.dtype))
        if self.wrong:
            out[0, 0] = 12345.0

    def dequant_fp4_row(self, weight, scale, out, *, stream=0):
        out.copy_(fp4_reference({"weight": weight, "scale": scale}, {})["out"].to(out.dtype))


def run(repository, view, module):
    bringup.build(repository, entry_by_id("nvidia-sm90", load_index()), LiveView())
    options = attest.read(["conformance", "--root", str(repository), "--by", "ada"])
    (document,) = attest.attest(
        repository, options, view, ["x"], lambda seed: conformance.run(module, "cuda", "cpu", seed, only=OPS)
    )
    return document


def test_a_device_that_equals_the_reference_runs_one_op(repository, host):
    document = run(repository, host("h20_3e_x4"), Reference())
    assert document["outcome"] == "pass"
    passed = {item["id"]: item for item in document["checks"] if item["outcome"] == "pass"}
    assert {"op.dequant.fp4_row", "op.dequant.fp8_block"} <= set(passed)
    assert passed["op.dequant.fp8_block"]["measured"] == "0"
    assert "cases, seed " in passed["op.dequant.fp8_block"]["note"]
    assert document["artifacts"][0]["name"] == "libkernels.so"
    render(repository)
    report = check(repository, dt.datetime.now(dt.timezone.utc).date())
    assert report.findings == []
    entry = status_of(report, 47)["entries"][0]
    assert (entry["status"], entry["engine"]) == ("draft", "runs (1 op)")
    assert "runs (1 op)" in (repository / "README.md").read_text()


def test_one_wrong_element_fails_and_is_named(repository, host):
    document = run(repository, host("h20_3e_x4"), Reference(wrong=True))
    assert document["outcome"] == "fail"
    bad = next(item for item in document["checks"] if item["outcome"] == "fail")
    assert bad["id"] == "op.dequant.fp8_block"
    assert "out[0, 0] is 12345.0" in bad["note"] or "out[0, 0] is 12352.0" in bad["note"]
    render(repository)
    assert "runs (1 op)" not in (repository / "README.md").read_text()


def test_the_library_has_the_calls_that_the_ops_make(repository):
    entry = entry_by_id("nvidia-sm90", load_index())
    bringup.build(repository, entry, LiveView())
    ops = DeviceOps(str(bringup.folder(repository, entry) / bringup.LIBRARY))
    for name in ("dequant_fp8_block", "dequant_fp4_row"):
        assert callable(getattr(ops, name))
        assert getattr(ops.library, "deepinfer_cuda_" + name)
