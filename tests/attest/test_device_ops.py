"""What attestation needs of a device, on a host without one: a library in C stands for the kernels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.attest import run as gates
from deepinfer.engine.attest.device_ops import DeviceOps, LaunchFailed
from deepinfer.engine.ops import conformance
from deepinfer.engine.ops.contract import Contract, Op

# Writes what it was given into ``out`` (fp32) or refuses; ``scale[0]`` chooses: 1 sets a flag, 2 returns an error.
LIBRARY = r"""
#include <stdint.h>
const char *deepinfer_cuda_error_name(int code) { return code == 7 ? "invalid shape" : "unknown"; }
static int fill(const uint8_t *scale, float *out, int wide, int64_t rows, int64_t columns, int64_t extra, int *status) {
  if (scale[0] == 2) return 7;
  if (scale[0] == 1) *status = 3;
  out[0] = wide; out[1] = rows; out[2] = columns; out[3] = extra;
  return 0;
}
int deepinfer_cuda_dequant_fp8_block(const void *w, const uint8_t *s, float *out, int wide, int64_t rows,
                                     int64_t columns, int64_t block, int *status, void *stream) {
  return fill(s, out, wide, rows, columns, block + (int64_t)stream, status);
}
int deepinfer_cuda_dequant_fp4_row(const void *w, const uint8_t *s, float *out, int wide, int64_t rows,
                                   int64_t columns, int *status, void *stream) {
  return fill(s, out, wide, rows, columns, (int64_t)stream, status);
}
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("not run: no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.c").write_text(LIBRARY)
    library = folder / "libkernels.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "kernels.c")], check=True)
    return DeviceOps(str(library))


def tensors(choice):
    return torch.zeros(2, 64, dtype=torch.uint8), torch.full((2, 2), choice, dtype=torch.uint8), torch.zeros(2, 64)


def test_shape_width_block_and_stream_arrive_in_their_places(ops):
    weight, scale, out = tensors(0)
    ops.dequant_fp8_block(weight, scale, out, 32, stream=1000)
    assert out[0, :5].tolist() == [1.0, 2.0, 64.0, 1032.0, 0.0]
    weight, scale, out = tensors(0)
    ops.dequant_fp4_row(weight, scale, out, stream=5)
    assert out[0, :5].tolist() == [1.0, 2.0, 64.0, 5.0, 0.0]


def test_a_refused_launch_and_met_nan_codes_are_errors(ops):
    with pytest.raises(LaunchFailed, match=r"dequant_fp4_row was not launched: invalid shape") as refused:
        ops.dequant_fp4_row(*tensors(2))
    assert "[2, 64]" in refused.value.fix
    with pytest.raises(LaunchFailed, match=r"dequant_fp8_block met NaN codes \(flags 3\)"):
        ops.dequant_fp8_block(*tensors(1), 32)


class Checks:
    """What a gate says, by id."""

    def __init__(self):
        self.found, self.artifacts = {}, []

    def check(self, name, fine, measured="", unit="", bound="", note=""):
        self.found[name] = (fine, measured, bound, note)


def test_conformance_sums_up_each_op():
    def outcomes(seed):
        assert seed == 11
        yield conformance.Outcome("dequant.fp8_block", "small", True, 0.0)
        yield conformance.Outcome("dequant.fp8_block", "large", False, float("inf"), "out[0, 1] is 2.0, not 1.0")

    run = Checks()
    gates.conformance(run, outcomes, 11)
    note = "2 cases, seed 11, bit for bit; 1 differ, the first: large: out[0, 1] is 2.0, not 1.0"
    assert run.found["op.dequant.fp8_block"] == (False, "inf", "0", note)
    assert run.found["op.dequant.fp4_row"] == (None, "", "", "no native version for this target")


def test_a_library_that_is_no_library_is_said_to_be(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"\x7fELF" + bytes(8))
    run = Checks()
    gates.build(run, tmp_path / "lib.so", ["90a"], "")
    assert list(run.found) == ["device_code"]
    assert run.found["device_code"][0] is False
    assert run.found["device_code"][3]
    assert run.artifacts == []


def test_a_host_without_torch_or_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gates.cuda_ready() == "cuda:0"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(gates.NoTorch, match="sees no CUDA device"):
        gates.cuda_ready()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gates.NoTorch, match="not installed"):
        gates.cuda_ready()


@pytest.mark.parametrize(
    ("got", "passed", "worst"),
    [
        ([3.0, 4.0], True, 0.0),
        ([3.0, 4.04], True, 0.008),
        ([3.0, 4.1], False, 0.02),
        ([3.0, float("nan")], False, None),
    ],
)
def test_a_tolerance_is_relative_to_the_whole_output(got, passed, worst):
    contract = Contract("op", "", (), {}, "", tolerance=0.01)
    op = Op(contract, lambda inputs, scalars: {"out": torch.tensor([3.0, 4.0])}, lambda generator, device: iter(()))
    case = SimpleNamespace(inputs={}, scalars={}, label="one")
    outcome = conformance.compare("op", op, case, {"out": torch.tensor(got)})
    assert outcome.passed is passed
    if worst is not None:
        assert outcome.worst == pytest.approx(worst, abs=1e-6)
        assert bool(outcome.detail) is not passed


def test_an_error_that_is_no_number_is_told_and_fails():
    def outcomes(seed):
        yield conformance.Outcome("rope.rotate", "fine", True, 1e-7, what="reference")
        yield conformance.Outcome(
            "rope.rotate", "unwritten", False, float("nan"), "out: relative error nan", "reference"
        )

    run = Checks()
    gates.conformance(run, outcomes, 1)
    fine, measured, bound, _ = run.found["reference.rope.rotate"]
    assert (fine, measured, bound) == (False, "nan", "1e-06")
