"""Builds records of hosts: a good 8 x B200 server and a good Ascend 950 server, each with any part changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from record_parts import (
    CANN,
    CUDA_ARCHS,
    DEBIAN,
    GPP,
    HEADER,
    LISTED,
    PYTHON,
    QUERY,
    UBUNTU,
    changed,
    cuda_root,
    gcc,
    gpu_row,
    npu_table,
    pci,
    say,
)

from deepinfer.matrix.index import load_index
from deepinfer.probes.check import Finding
from deepinfer.probes.judge import judge
from deepinfer.probes.record_form import check_record
from deepinfer.probes.recorded import RecordedView
from deepinfer.probes.verdict import Verdict
from deepinfer.probes.wish import Wish

ROOT = Path(__file__).resolve().parents[2]
HOSTS = sorted((ROOT / "tests" / "hosts").glob("*.json"))
INDEX = load_index(check=False)  # that it is fresh is for the tests of the matrix to say


def b200_host(
    *,
    count: int = 8,
    name: str = "NVIDIA B200",
    cc: str = "10.0",
    pci_id: str = "10de:2901",
    memory: str = "183359 MiB",
    driver: str = "580.126.09",
    driver_cuda: str = "13.0",
    mig: str = "Disabled",
    fabric: tuple[str, str] | None = ("Completed", "Success"),
    cuda: str = "13.0.88",
    archs: str = CUDA_ARCHS,
    max_gcc: int = 15,
    compiler: str = "13.3.0",
    python: str = "3.12.3",
    dev: list[str] | None = None,
    libs: dict[str, Any] | None = None,
    rows: list[str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A server that is eligible unless something is changed; ``env``, ``files``, ``cmds``: on top, None takes away."""
    if rows is None:
        rows = [gpu_row(index, name, cc, memory, driver, mig) for index in range(count)]
    nodes = ["/dev/nvidia%d" % index for index in range(count)] + ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    toolkit_files, toolkit_cmds = cuda_root("/usr/local/cuda-13.0", cuda, archs, max_gcc)
    record = {
        "schema": 1,
        "machine": "x86_64",
        "system": "Linux",
        "python": dict(PYTHON, version=python),
        "env": {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin"},
        "listed": list(LISTED),
        "files": {**_driver_files(driver), **toolkit_files},
        "dev": nodes if dev is None else dev,
        "cmds": {**toolkit_cmds, GPP: gcc(compiler), **_smi(rows, driver, driver_cuda, fabric)},
        "libs": libs or {},
    }
    for index in range(count):
        record["files"].update(pci("0000:%02x:00.0" % (0x10 + index), pci_id))
    return changed(record, changes.get("env"), changes.get("files"), changes.get("cmds"))


def _driver_files(driver: str) -> dict[str, str]:
    held = {
        "/etc/os-release": UBUNTU,
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release\n"
        % driver,
        "/usr/local/cuda": "-> /usr/local/cuda-13.0",
    }
    for soname in ("libcuda.so", "libnvidia-ml.so"):
        held["/usr/lib/x86_64-linux-gnu/%s.1" % soname] = "-> %s.%s" % (soname, driver)
        held["/usr/lib/x86_64-linux-gnu/%s.%s" % (soname, driver)] = "<lib>"
    return held


def _smi(rows: list[str], driver: str, cuda: str, fabric: tuple[str, str] | None) -> dict[str, Any]:
    section = "" if fabric is None else "    Fabric\n        State    : %s\n        Status   : %s\n" % fabric
    return {
        QUERY: say("\n".join([HEADER, *rows]) + "\n"),
        "nvidia-smi": say("| NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %s |" % (driver, driver, cuda)),
        "nvidia-smi -q": say(section),
    }


def ascend_host(
    *,
    chips: list[tuple[int, str]] | None = None,
    separate: bool = True,
    pci_id: str = "19e5:d806",
    board: dict[str, Any] | None = None,
    cann: str = "9.2.0",
    env: dict[str, str] | None = None,
    files: dict[str, str | None] | None = None,
    cmds: dict[str, Any] | None = None,
    dev: list[str] | None = None,
) -> dict[str, Any]:
    """An Ascend 950PR server that is eligible unless something is changed."""
    chips = [(0, "Ascend950PR"), (1, "Ascend950PR")] if chips is None else chips
    held = {
        "/etc/os-release": 'NAME="openEuler"\nID="openEuler"\nVERSION_ID="24.03"\n',
        "/usr/local/Ascend/driver/version.info": "Version=25.7.rc1.6\npackage_version=25.7.rc1.6\n",
        CANN + "/set_env.sh": "<script>",
        CANN + "/x86_64-linux/ascend_toolkit_install.info": "package_name=Ascend-cann-toolkit\nversion=%s\n" % cann,
        CANN + "/x86_64-linux/data/platform_config/Ascend950PR_9579.ini": "[version]\n",
        "/usr/local/Ascend/cann": "-> " + CANN,
    }
    for place in range(len(chips)):
        if pci_id:
            held.update(pci("0000:%02x:00.0" % (0x60 + place), pci_id, "0x120000", "devdrv_device_driver"))
    commands = {GPP: gcc("13.3.1"), "npu-smi info": say(npu_table(chips, separate=separate))}
    page = say("NPU ID : 0\nNPU Name : 9579\nChip Name : Ascend950PR\nCompatibility : OK\n")
    commands.update(board if board is not None else {"npu-smi info -t board -i %d" % npu: page for npu, _ in chips})
    nodes = ["/dev/davinci%d" % place for place in range(len(chips))] + ["/dev/davinci_manager", "/dev/hisi_hdc"]
    variables = {
        "PATH": "/usr/bin:/bin",
        "ASCEND_HOME_PATH": CANN,
        "ASCEND_TOOLKIT_HOME": CANN,
        "ASCEND_OPP_PATH": CANN + "/opp",
    }
    return changed(
        {
            "schema": 1,
            "machine": "x86_64",
            "python": dict(PYTHON),
            "env": variables,
            "listed": list(LISTED),
            "files": held,
            "dev": nodes if dev is None else dev,
            "cmds": commands,
        },
        env,
        files,
        cmds,
    )


def bare_host(**changes: Any) -> dict[str, Any]:
    """A host without any accelerator."""
    return changed(
        {
            "schema": 1,
            "machine": "x86_64",
            "python": dict(PYTHON),
            "env": {"PATH": "/usr/bin:/bin"},
            "listed": list(LISTED),
            "files": {"/etc/os-release": DEBIAN, **pci("0000:00:02.0", "1013:00b8", "0x030000", "")},
            "dev": ["/dev/null"],
            "cmds": {GPP: gcc("12.2.0")},
        },
        changes.get("env"),
        changes.get("files"),
        changes.get("cmds"),
    )


def judged(record: dict[str, Any], aspect: str = "both", wish: Wish | None = None) -> Verdict:
    """The verdict on ``record``, after a journey through JSON."""
    return judge(RecordedView(check_record(json.loads(json.dumps(record)))), INDEX, wish or Wish(), aspect=aspect)


def finding(verdict: Verdict, identity: str) -> Finding:
    """The finding of one check."""
    found = [item for item in verdict.findings if item.id == identity]
    assert found, "%s is not among %s" % (identity, [item.id for item in verdict.findings])
    return found[0]


def outcomes(verdict: Verdict, *bad: str) -> set[str]:
    """Ids of the checks with one of the outcomes ``bad`` (default: fail and unknown)."""
    return {item.id for item in verdict.findings if item.outcome in (bad or ("fail", "unknown"))}
