"""An artifact on a host that it was not made for: each kind of misfit has its own error and the command to mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import installed

from deepinfer.errors import DeepInferError
from deepinfer.matrix.index import load_index
from deepinfer.probes.artifact.fitness import require
from deepinfer.probes.recorded import RecordedView

HOSTS = Path(__file__).resolve().parents[1] / "hosts"


def view(name: str, **env: str) -> RecordedView:
    record: dict[str, Any] = json.loads((HOSTS / f"{name}.json").read_text(encoding="utf-8"))
    record["env"] = {**record.get("env", {}), **env}
    return RecordedView(record)


# host -> (code, words in the message, words in the fix) for an artifact of nvidia-sm100
SM100 = {
    "a100x8_old_stack": ("DI323", "8 x NVIDIA A100-SXM4-80GB", "a host with NVIDIA SM100"),
    "ascend310p": ("DI323", "2 x Ascend 310P3", "a host with NVIDIA SM100"),
    "ascend910b_a2_cann85": ("DI323", "8 x Ascend 910B3", "a host with NVIDIA SM100"),
    "ascend910c_a3_cann91": ("DI323", "RFC 46", "python3 -m deepinfer.probe"),
    "ascend950_no_cann": ("DI323", "ascend-950", "DEEPINFER_ACCELERATOR=ascend pip install"),
    "ascend950pr_cann91_container": ("DI323", "ascend-950", "DEEPINFER_ACCELERATOR=ascend pip install"),
    "ascend950pr_cann92": ("DI323", "ascend-950", "DEEPINFER_ACCELERATOR=ascend pip install"),
    "b200_driver570_cuda13": ("DI324", "driver.version: 570.133.20", "upgrade the driver"),
    "b200_driver_missing": ("DI324", "driver.module: no kernel module loaded", "install the NVIDIA driver"),
    "b300x8_r610": ("DI323", "8 x NVIDIA B300 SXM6 AC", "a host with NVIDIA SM100"),
    "both_vendors": ("DI323", "ascend-950", "DEEPINFER_ACCELERATOR=ascend pip install"),
    "cann_only_buildbox": ("DI322", "no accelerator", "DEEPINFER_ACCELERATOR=cpu pip install"),
    "container_not_exposed": ("DI324", "exposure.nodes: 0 of 8", "--gpus all"),
    "h100_cuda12_only": ("DI323", "RFC 47", "python3 -m deepinfer.probe"),
    "h100_mig": ("DI323", "RFC 47", "python3 -m deepinfer.probe"),
    "h200_measured": ("DI323", "1 x NVIDIA H200", "python3 -m deepinfer.probe"),
    "h200_container": ("DI323", "1 x NVIDIA H200", "python3 -m deepinfer.probe"),
    "h20_3e_x4": ("DI323", "4 x NVIDIA H20-3e", "python3 -m deepinfer.probe"),
    "lib_module_mismatch": ("DI324", "driver.", "reboot"),
    "no_gpu": ("DI322", "no accelerator", "DEEPINFER_ACCELERATOR=cpu pip install"),
    "rtx5090_wsl2": ("DI323", "1 x NVIDIA GeForce RTX 5090", "a host with NVIDIA SM100"),
}
FITS = {"b200_pip_cuda13", "b200x8_baremetal"}
OTHER_PROCESSOR = {"gb10_dgx_spark", "gb200_nvl72_tray"}


def test_every_recorded_host_is_looked_at() -> None:
    assert set(SM100) | FITS | OTHER_PROCESSOR == {path.stem for path in HOSTS.glob("*.json")}


@pytest.mark.parametrize("name", SM100)
def test_each_wrong_host_has_its_own_error(name: str) -> None:
    code, what, fix = SM100[name]
    host = view(name)
    artifact = installed(machine=host.machine().value)
    with pytest.raises(DeepInferError) as caught:
        require(artifact, host, load_index())
    message = str(caught.value)
    assert message.startswith(code + ": ")
    assert what in message
    assert fix in caught.value.fix


@pytest.mark.parametrize("name", sorted(FITS))
def test_the_right_host_is_accepted(name: str) -> None:
    require(installed(), view(name), load_index())


@pytest.mark.parametrize("name", sorted(OTHER_PROCESSOR))
def test_another_processor_is_told_apart(name: str) -> None:
    with pytest.raises(DeepInferError, match="DI321: the artifact is for x86_64; this is aarch64"):
        require(installed(), view(name), load_index())


def test_a_gb200_tray_takes_its_own_build() -> None:
    require(installed(machine="aarch64"), view("gb200_nvl72_tray"), load_index())


def test_a_host_that_cannot_be_read_is_not_called_wrong() -> None:
    blind = RecordedView({"machine": "x86_64", "unknown": {"/dev": "permission denied"}})
    with pytest.raises(DeepInferError, match="DI325: "):
        require(installed(), blind, load_index())


def test_a_target_named_at_run_time_must_be_the_installed_one() -> None:
    host = view("no_gpu", DEEPINFER_ACCELERATOR="nvidia")
    with pytest.raises(DeepInferError) as caught:
        require(installed("host-cpu"), host, load_index())
    assert str(caught.value).startswith("DI320: ")
    assert (
        caught.value.fix == "DEEPINFER_ACCELERATOR=nvidia pip install --no-cache-dir --force-reinstall deepinfer==0.1.0"
    )


def test_the_reference_artifact_is_never_a_fallback() -> None:
    for name in ("b200x8_baremetal", "b200_driver_missing", "ascend950pr_cann92"):
        with pytest.raises(DeepInferError, match="DI320: installed is the reference artifact"):
            require(installed("host-cpu"), view(name), load_index())
    require(installed("host-cpu"), view("b200x8_baremetal", DEEPINFER_ACCELERATOR="cpu"), load_index())


@pytest.mark.parametrize("name", ["no_gpu", "h200_container", "b300x8_r610", "ascend910c_a3_cann91"])
def test_the_reference_artifact_works_where_there_is_nothing_better(name: str) -> None:
    host = view(name)
    require(installed("host-cpu", machine=host.machine().value), host, load_index())


REINSTALL = {
    "index, pip": ({}, "pip install --no-cache-dir --force-reinstall deepinfer==0.1.0"),
    "index, uv": ({"installer": "uv"}, "uv pip install --no-cache --reinstall deepinfer==0.1.0"),
    "folder": ({"origin": "/src"}, "pip install --no-cache-dir --force-reinstall /src"),
    "editable": ({"origin": "/src", "editable": True}, "pip install --no-cache-dir --force-reinstall -e /src"),
}


@pytest.mark.parametrize("case", REINSTALL)
def test_the_command_that_mends_is_exact(case: str) -> None:
    more, command = REINSTALL[case]
    assert installed(**more).reinstall() == command
    assert installed(**more).reinstall("DEEPINFER_ACCELERATOR=cpu") == "DEEPINFER_ACCELERATOR=cpu " + command
