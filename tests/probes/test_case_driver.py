"""Field failures C-01 to C-28: what drivers and their tools print, and what must be made of it."""

from __future__ import annotations

import pytest
from probe_hosts import b200_host, bare_host, finding, judged, outcomes
from record_parts import GPP, HEADER, QUERY, cuda_root, gcc, gpu_row, pci, say, without

from deepinfer.probes.facts.nvidia_smi import parse_banner

HANG = {"rc": None, "out": "", "err": "no answer in 10 s"}
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n"


def fabric(state, status=0):
    """NVML answers of one B200 with this fabric."""
    calls = {
        "init": [0, True],
        "driver_version": [0, "580.126.09"],
        "cuda_version": [0, 13000],
        "count": [0, 1],
        "handle(0)": [0, True],
        "name(0)": [0, "NVIDIA B200"],
        "compute_capability(0)": [0, [10, 0]],
        "memory_total(0)": [0, 192265846784],
        "pci(0)": [0, ["00000000:10:00.0", 0x290110DE]],
        "fabric(0)": [0, [state, status, 0, False]],
    }
    return {"nvml": {"path": "libnvidia-ml.so.1", "calls": calls}}


@pytest.mark.parametrize(
    ("banner", "driver", "cuda"),
    [
        ("| NVIDIA-SMI 610.43.02     KMD Version: 610.43.02     CUDA UMD Version: 13.3     |", "610.43.02", (13, 3)),
        ("| NVIDIA-SMI 552.22   Driver Version: 552.22   CUDA Version: 12.6 |", "552.22", (12, 6)),
        ("| NVIDIA-SMI 595.71.01   Driver Version: 596.36   CUDA Version: 13.2 |", "596.36", (13, 2)),
    ],
    ids=["C-01-R610", "C-01-R550", "C-01-windows-host"],
)
def test_both_dialects_of_the_banner_are_read(banner, driver, cuda):
    assert parse_banner(banner) == (driver, cuda)
    version = finding(judged(b200_host(cmds={"nvidia-smi": say(banner)})), "driver.version")
    assert "CUDA %d.%d" % cuda in version.found


@pytest.mark.parametrize(
    "text",
    ["| NVIDIA-SMI 700 Treiber: 700.1 |", "驱动程序版本：515.105.01", "", "\x00\x01\x02", "OK\n"],  # noqa: RUF001
    ids=["C-01-no-match", "C-07-translated", "C-01-empty", "C-01-garbage", "C-01-one-word"],
)
def test_a_table_that_nobody_can_parse_is_undetermined_with_its_first_bytes(text):
    verdict = judged(b200_host(cmds={QUERY: say(text), "nvidia-smi": say(text)}))
    found = finding(verdict, "driver.answers")
    assert (verdict.verdict, found.outcome) == ("undetermined", "unknown")
    assert "prints what nobody can parse" in found.found
    assert len(verdict.devices) == 8  # the bus still lists them


@pytest.mark.parametrize("value", ["[N/A]", "N/A", "Not Supported", "[Not Supported]", "Unknown Error", ""], ids=repr)
def test_a_query_that_is_not_supported_loses_one_fact_and_no_device_C_04(value):
    host = b200_host(name="NVIDIA GB10", cc="12.1", pci_id="10de:2e12", count=1, memory=value, fabric=None)
    verdict = judged(host)
    assert (verdict.exit_code, verdict.entry["id"], verdict.capacity) == (4, "nvidia-sm121", "unknown")
    assert verdict.document()["devices"][0]["memory_bytes"] is None
    supported = judged(b200_host(memory=value))
    assert (supported.verdict, supported.capacity) == ("eligible", "unknown")


def test_an_nvml_call_that_is_not_supported_loses_one_fact_and_no_device_C_04():
    libs = fabric(3)
    libs["nvml"]["calls"].update({"memory_total(0)": [3, None], "compute_capability(0)": [0, [12, 1]]})
    verdict = judged(b200_host(count=1, pci_id="10de:2e12", libs=libs))
    assert (verdict.exit_code, verdict.entry["id"], verdict.capacity) == (4, "nvidia-sm121", "unknown")


@pytest.mark.parametrize("told", ["13.0", "13.3"], ids=["C-06", "C-06-newer"])
def test_the_cuda_column_of_nvidia_smi_is_not_the_toolkit(told):
    files, cmds = cuda_root("/usr", "12.0.140", "70 75 80 90")
    host = without(b200_host(driver_cuda=told), "/usr/local/cuda")
    host["files"].update(files)
    host["cmds"].update(cmds)
    verdict = judged(host)
    assert verdict.verdict == "fixable"
    toolkit = finding(verdict, "toolkit.cuda")
    assert (toolkit.outcome, toolkit.where) == ("fail", "nvcc on PATH (/usr/bin/nvcc)")
    assert "12.0.140" in toolkit.found and toolkit.needed == "CUDA >=13,<14"
    driver = finding(verdict, "driver.version")
    assert driver.outcome == "pass" and "CUDA %s" % told in driver.found


@pytest.mark.parametrize("row", ["0, NVIDIA B200", "驱动程序, x\n1, 2", "index,name\nzero,B200"], ids=repr)
def test_a_localised_or_torn_table_is_undetermined_C_07(row):
    verdict = judged(b200_host(cmds={QUERY: say(row), "nvidia-smi": say("驱动程序版本")}))
    assert verdict.verdict == "undetermined"


@pytest.mark.parametrize(
    ("version", "header", "outcome"),
    [("13.3.73", "", "pass"), ("13.0.88", "", "pass"), ("13.0.88", "13.3", "fail"), ("12.9.86", "13.0", "fail")],
    ids=["C-08", "C-08-13.0", "C-08-mixed", "C-08-mixed-major"],
)
def test_nvcc_and_cuda_h_are_compared(version, header, outcome):
    files, cmds = cuda_root("/usr/local/cuda-13.0", version, header=header)
    verdict = judged(b200_host(files=files, cmds=cmds))
    found = finding(verdict, "toolkit.consistent")
    assert found.outcome == outcome
    assert "nvcc " + ".".join(version.split(".")[:2]) in found.found
    assert (verdict.verdict == "fixable") == (outcome == "fail")


@pytest.mark.parametrize("kernel", ["580.126.09", "570.124.06"])
@pytest.mark.parametrize("through", ["text", "nvml"])
def test_a_driver_and_library_mismatch_is_fixable_and_names_the_reboot_C_10(kernel, through):
    host = b200_host(driver=kernel, cmds={QUERY: say(MISMATCH, 18), "nvidia-smi": say(MISMATCH, 18)})
    if through == "nvml":
        host["libs"] = {"nvml": {"path": "x", "calls": {"init": [18, None]}}}
    verdict = judged(host)
    found = finding(verdict, "driver.answers")
    assert (verdict.verdict, verdict.entry["id"], found.outcome) == ("fixable", "nvidia-sm100", "fail")
    assert "reboot" in found.fix and finding(verdict, "driver.module").found == kernel


@pytest.mark.parametrize(
    ("kernel", "user"),
    [("580.124.06", "580.124.04"), ("580.126.09", "580.126"), ("580.95.05", "580.126.09")],
    ids=["C-11", "C-11-short", "C-16"],
)
def test_libraries_and_module_are_compared_to_the_last_digit_and_both_are_shown(kernel, user):
    folder = "/usr/lib/x86_64-linux-gnu/"
    files = {folder + "libcuda.so.1": "-> libcuda.so." + user, folder + "libcuda.so." + user: "<lib>"}
    verdict = judged(b200_host(driver=kernel, files=files))
    found = finding(verdict, "driver.libraries")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail")
    assert kernel in found.found and user in found.found and found.where == folder + "libcuda.so." + user


def test_a_library_of_a_foreign_folder_is_the_one_that_is_judged_C_16():
    files = {"/opt/old/libcuda.so.1": "-> libcuda.so.535.1", "/opt/old/libcuda.so.535.1": "<lib>"}
    verdict = judged(b200_host(env={"LD_LIBRARY_PATH": "relative::/opt/old"}, files=files))
    assert finding(verdict, "driver.libraries").where == "/opt/old/libcuda.so.535.1"
    assert "LD_LIBRARY_PATH" in finding(verdict, "driver.libraries").fix


@pytest.mark.parametrize("unlisted", [("/sys", "/dev"), ("/sys", "/dev", "/proc")], ids=["C-12", "C-12-no-proc"])
def test_nothing_that_could_be_read_is_undetermined(unlisted):
    verdict = judged(without(bare_host(), *unlisted))
    assert (verdict.exit_code, verdict.findings[0].outcome) == (7, "unknown")
    assert "/sys/bus/pci/devices" in verdict.findings[0].found


@pytest.mark.parametrize("unlisted", ["/sys", "/dev"], ids=["C-12-dev-read", "C-12-bus-read"])
def test_one_listing_that_was_read_and_shows_nothing_is_no_accelerator(unlisted):
    assert judged(without(bare_host(), unlisted)).exit_code == 5


@pytest.mark.parametrize(
    "marker", [{"/.dockerenv": "<file>"}, {"/run/.containerenv": "<file>"}], ids=["C-13", "C-13-podman"]
)
def test_a_container_without_its_devices_is_told_the_flag(marker):
    host = without(b200_host(dev=["/dev/null"]), "nvidia-smi", "/usr/lib/x86_64", "/sys/bus/pci/devices/none")
    host["files"].update(marker)
    host["env"]["PATH"] = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin:/bin"
    verdict = judged(host)
    found = finding(verdict, "exposure.nodes")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail")
    assert "container" in found.found and "mounted by the container runtime" in found.why and "--gpus all" in found.fix


@pytest.mark.parametrize(("state", "word"), [(1, "Not Started"), (2, "In Progress")], ids=["C-15", "C-15-progress"])
def test_a_fabric_that_is_not_up_is_fixable_although_nvidia_smi_looks_fine(state, word):
    verdict = judged(b200_host(count=1, libs=fabric(state)))
    found = finding(verdict, "fabric.state")
    assert (verdict.verdict, verdict.blocking, verdict.entry["id"]) == ("fixable", ["fabric"], "nvidia-sm100")
    assert word in found.found and "802" in found.why and "nvidia-fabricmanager" in found.fix


@pytest.mark.parametrize("driver", ["570.195.03", "575.57.08", "580.65.05"], ids=["C-18-570", "C-18-575", "C-18-patch"])
def test_an_old_driver_stops_running_and_not_compiling(driver):
    host = b200_host(driver=driver, driver_cuda="12.8")
    verdict = judged(host)
    assert verdict.verdict == "fixable" and outcomes(verdict) == {"driver.version"}
    assert ">=580.65.06" in finding(verdict, "driver.version").needed
    assert "580.65.06" in finding(verdict, "driver.version").fix
    assert (judged(host, "build").exit_code, judged(host, "run").exit_code) == (0, 6)
    aspects = verdict.document()["aspects"]
    assert (aspects["build"]["verdict"], aspects["run"]["verdict"]) == ("eligible", "fixable")


@pytest.mark.parametrize("cuda", ["13.3.73", "13.1.1"])
def test_a_driver_of_an_older_minor_version_is_a_warning_that_names_ptx_C_19(cuda):
    verdict = judged(b200_host(driver="580.65.06", driver_cuda="13.0", cuda=cuda))
    found = finding(verdict, "driver.version")
    assert (verdict.verdict, found.outcome) == ("eligible", "warn")
    assert "PTX" in found.why and "13.0" in found.found


def test_a_driver_of_a_newer_minor_version_is_fine_C_19():
    assert finding(judged(b200_host(driver_cuda="13.3")), "driver.version").outcome == "pass"


@pytest.mark.parametrize("on_bus", [True, False], ids=["gpu-on-the-bus", "paravirtual"])
def test_wsl_finds_the_library_by_soname_in_its_own_folder_C_24(on_bus):
    host = without(b200_host(count=1, dev=["/dev/dxg"]), "/usr/lib", "/proc/driver", "/sys/bus/pci/devices/")
    host["listed"] += ["/usr/lib", "/proc/driver"]
    if on_bus:
        host["files"].update(pci("0000:10:00.0", "10de:2901"))
    files = {"/usr/lib/wsl/lib/libcuda.so.1": "<lib>", "/usr/lib/wsl/lib/libnvidia-ml.so.1": "<lib>"}
    host["files"].update(files, **{"/proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2\n"})
    verdict = judged(host)
    assert verdict.verdict == "eligible" and verdict.entry["id"] == "nvidia-sm100"


def test_a_windows_gpu_of_another_vendor_is_no_accelerator_C_24():
    host = bare_host(files={"/proc/version": "Linux version 6.6-microsoft-standard-WSL2\n"})
    host["dev"].append("/dev/dxg")
    assert judged(host).exit_code == 5


@pytest.mark.parametrize(
    "libs", [{}, {"nvml": {"silent": "no answer in 20 s"}}, {"nvml": {"missing": True}}], ids=["tool", "nvml", "both"]
)
def test_a_driver_that_hangs_is_undetermined_and_says_how_long_was_waited_C_26(libs):
    verdict = judged(b200_host(libs=libs, cmds={QUERY: HANG, "nvidia-smi": HANG, "nvidia-smi -q": HANG}))
    found = finding(verdict, "driver.answers")
    assert (verdict.verdict, found.outcome, verdict.entry["id"]) == ("undetermined", "unknown", "nvidia-sm100")
    assert "no answer in" in found.found and "reboot" in found.fix
    assert all(item.device.exposed for item in verdict.devices)  # its nodes are there


@pytest.mark.parametrize(
    ("identity", "klass", "exit_code"),
    [
        ("10de:2901", "0x030200", 6),
        ("10de:2901", "0x030000", 6),
        ("10de:22a3", "0x068000", 5),
        ("10de:10f0", "0x040300", 5),
        ("19e5:d806", "0x120000", 6),
        ("19e5:a222", "0x020000", 5),
        ("19e5:1711", "0x030000", 5),
        ("1002:74a1", "0x120000", 5),
        ("8086:56c0", "0x030000", 5),
    ],
    ids=["3d", "vga", "nvswitch", "audio", "npu", "huawei-nic", "huawei-bmc", "amd", "intel"],
)
def test_the_pci_class_and_the_vendor_together_make_an_accelerator_C_28(identity, klass, exit_code):
    host = bare_host(files=pci("0000:1b:00.0", identity, klass, ""), cmds={GPP: gcc("13.3.0")})
    assert judged(host).exit_code == exit_code


def test_a_gpu_row_of_the_csv_is_read_by_its_header_C_01():
    names = HEADER.split(", ")
    cells = gpu_row(0, "NVIDIA B200", "10.0", "183359 MiB", "580.126.09", "Disabled").split(", ")
    text = ", ".join([*reversed(names), "new.column"]) + "\n" + ", ".join([*reversed(cells), "x"]) + "\n"
    assert judged(b200_host(count=1, cmds={QUERY: say(text)})).verdict == "eligible"
