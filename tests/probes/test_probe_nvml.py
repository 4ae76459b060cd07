"""NVML itself: a library made for the test, loaded by the real reader, judged, recorded and judged again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from probe_hosts import INDEX, b200_host, finding, judged

from deepinfer.probes import live
from deepinfer.probes.facts.nvidia_library import LIBRARY_FOLDERS
from deepinfer.probes.judge import judge
from deepinfer.probes.live import LiveView
from deepinfer.probes.record_form import check_record
from deepinfer.probes.recorded import RecordedView
from deepinfer.probes.recording import RecordingView
from deepinfer.probes.redact import redact
from deepinfer.probes.wish import Wish

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="not run: no gcc to make the library with")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(words, check=True)
    return folder


@pytest.fixture
def nvml(library, monkeypatch):
    """Asks the real reader, with a library that plays the given part."""

    def ask(part: str = "", seconds: float = 10.0):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("FAKE_NVML", part)
        monkeypatch.setattr(live, "NVML_SECONDS", seconds)
        return LiveView().nvml()

    return ask


class WithLiveNvml(RecordedView):
    """A recorded host whose NVML is the one on this machine."""

    def __init__(self, record, fact) -> None:
        super().__init__(check_record(record))
        self.fact = fact

    def nvml(self):
        return self.fact


def verdict_of(fact, **host):
    """The verdict, and the one on its own redacted record."""
    view = RecordingView(WithLiveNvml(b200_host(**host), fact))
    verdict = judge(view, INDEX, Wish())
    plain = redact(json.loads(json.dumps(view.record())))
    assert "52a3a85d" not in json.dumps(plain)
    assert json.dumps(judged(plain).document()) == json.dumps(verdict.document())
    return verdict


def test_four_devices_reach_the_verdict_the_checks_and_the_record(nvml):
    verdict = verdict_of(nvml("four"), count=4)
    assert verdict.verdict == "eligible" and len(verdict.devices) == 4
    device = verdict.document()["devices"][2]
    assert (device["arch"], device["identified_by"], device["pci_id"]) == ("10.0", "nvml", "10de:2901")
    assert device["memory_bytes"] == 192265846784
    assert finding(verdict, "driver.answers").found == "nvml"
    assert finding(verdict, "driver.version").found == "580.126.09 (CUDA 13.0)"
    assert finding(verdict, "fabric.state").found == "Completed, Success"


def test_a_device_is_selected_by_the_uuid_that_nvml_gives(nvml):
    value = "GPU-52a3a85d-3c55-4b1e-9a11-000000000003"
    verdict = verdict_of(nvml("four"), count=4, env={"CUDA_VISIBLE_DEVICES": value})
    assert [item.device.visible for item in verdict.devices] == [False, False, True, False]


def test_slices_have_their_own_memory(nvml):
    verdict = verdict_of(nvml("mig"), count=1, env={"CUDA_VISIBLE_DEVICES": "MIG-52a3a85d-3c55-4b1e-9a11-000000000065"})
    device = verdict.document()["devices"][0]
    assert (device["partitions"], device["memory_bytes"]) == (["1g.23gb"], 24696061952)
    assert finding(verdict, "device.partition").outcome == "fail"


def test_a_fabric_in_progress_is_fixable(nvml):
    verdict = verdict_of(nvml("progress"), count=1)
    assert verdict.blocking == ["fabric"] and "In Progress" in finding(verdict, "fabric.state").found


def test_memory_that_is_not_supported_is_not_known(nvml):
    verdict = verdict_of(nvml("gb10"), count=1, pci_id="10de:2e12")
    assert (verdict.exit_code, verdict.entry["id"], verdict.capacity) == (4, "nvidia-sm121", "unknown")


def test_calls_that_an_old_driver_has_not_cost_their_facts_only(nvml):
    verdict = verdict_of(nvml("old"), count=1)
    assert verdict.verdict == "eligible" and finding(verdict, "fabric.state").outcome == "warn"


def test_a_device_that_fell_off_the_bus_is_not_exposed_and_the_rest_is(nvml):
    verdict = verdict_of(nvml("four lost"), count=4)
    assert [item.device.exposed for item in verdict.devices] == [True, False, True, True]


@pytest.mark.parametrize(
    ("part", "words", "code"), [("mismatch", "reboot", 18), ("unloaded", "modprobe", 9), ("unknown", "restart", 999)]
)
def test_an_error_of_init_is_fixable_with_its_own_advice(part, words, code, nvml):
    found = finding(verdict_of(nvml(part), count=1), "driver.answers")
    assert found.outcome == "fail" and words in found.fix and str(code) in found.why


def test_a_driver_that_hangs_in_init_is_bounded_and_leaves_no_child(nvml):
    begin = time.monotonic()
    fact = nvml("hang", seconds=0.5)
    assert time.monotonic() - begin < 3 and fact.is_unknown and "no answer in 0.5 s" in fact.reason
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    verdict = verdict_of(fact, count=1)
    assert verdict.verdict == "undetermined" and finding(verdict, "driver.answers").outcome == "unknown"


def test_a_library_that_prints_for_itself_still_answers(nvml):
    assert finding(verdict_of(nvml("noise"), count=1), "driver.answers").found == "nvml"


def test_a_library_that_crashes_leaves_the_tool_to_answer(nvml):
    fact = nvml("crash")
    assert fact.is_unknown and "the NVML reader" in fact.reason
    verdict = verdict_of(fact, count=1)
    assert verdict.verdict == "eligible" and finding(verdict, "driver.answers").found == "nvidia-smi"


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + b"\x00" * 60], ids=["empty", "text", "torn"])
def test_a_library_that_cannot_be_loaded_is_broken_and_not_missing(content, tmp_path, monkeypatch):
    if any(os.path.exists("%s/libnvidia-ml.so.1" % folder) for folder in LIBRARY_FOLDERS):
        pytest.skip("not run: the reader finds a real driver library here and takes that")
    (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fact = LiveView().nvml()
    assert fact.is_present and fact.value["broken"] and not fact.value["missing"]
    verdict = judge(
        WithLiveNvml(b200_host(count=1, cmds={key: None for key in b200_host()["cmds"] if "smi" in key}), fact),
        INDEX,
        Wish(),
    )
    assert finding(verdict, "driver.answers").outcome == "fail"
    assert judge(WithLiveNvml(b200_host(count=1), fact), INDEX, Wish()).verdict == "eligible"  # the tool answers


def test_an_early_start_that_nobody_asked_for_is_ended(library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", "hang")
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    view = LiveView()
    view.warm()
    child = view._nvml_child
    view.close()
    assert child is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
