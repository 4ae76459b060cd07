"""Unknown never turns into absent, and neither into a pass: each place where nobody could look says so."""

from __future__ import annotations

import pytest
from probe_hosts import b200_host, finding, judged
from record_parts import say, without

LIBRARIES = "/usr/lib/x86_64-linux-gnu/libcuda.so"


def unlisted(record, folder):
    record["listed"] = [name for name in record["listed"] if name != folder]
    return record


def test_an_nvcc_that_nobody_could_look_for_is_unknown_and_not_missing():
    host = without(b200_host(env={"PATH": "/secret/bin:/usr/bin"}), "/usr/local/cuda")
    verdict = judged(host)
    found = finding(verdict, "toolkit.cuda")
    assert (verdict.verdict, found.outcome) == ("undetermined", "unknown") and "/secret/bin" in found.found


@pytest.mark.parametrize("part", ["crt/host_config.h", "cuda.h"])
def test_a_part_of_the_toolkit_that_nobody_could_look_for_is_no_pass(part):
    host = b200_host(files={"/usr/local/cuda-13.0/targets/x86_64-linux/include/" + part: None})
    host["unknown"] = {"/usr/local/cuda-13.0/include/" + part: "Permission denied"}
    found = finding(judged(host), "toolkit.parts")
    assert found.outcome == "unknown" and found.found.startswith(part) and "Permission denied" in found.found


@pytest.mark.parametrize("text", ["<file>", "", "#if __GNUC__ > many"], ids=["not-held", "empty", "other-form"])
def test_a_bound_of_nvcc_that_could_not_be_read_is_a_warning(text):
    path = "/usr/local/cuda-13.0/targets/x86_64-linux/include/crt/host_config.h"
    verdict = judged(b200_host(files={path: text}))
    assert (verdict.verdict, finding(verdict, "compiler.cuda_host").outcome) == ("eligible", "warn")


def test_a_libcuda_that_is_not_in_the_usual_folders_is_a_warning_while_the_driver_answers():
    verdict = judged(without(b200_host(files={"/.dockerenv": "<file>"}), LIBRARIES))
    found = finding(verdict, "driver.libraries")
    assert (verdict.verdict, found.outcome) == ("eligible", "warn")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute" in found.fix


@pytest.mark.parametrize(("listed", "outcome"), [(True, "fail"), (False, "unknown")])
def test_without_an_answer_a_missing_library_fails_and_one_that_nobody_looked_for_is_unknown(listed, outcome):
    host = without(b200_host(), LIBRARIES, "nvidia-smi")
    host["listed"] += ["/usr/lib64", "/run"]
    host = host if listed else unlisted(host, "/usr/lib")
    assert finding(judged(host), "driver.libraries").outcome == outcome


@pytest.mark.parametrize("folder", ["/sys/bus/pci/devices", "/dev", "/proc/driver", "/usr/lib", "/etc"])
def test_one_listing_that_could_not_be_read_leaves_the_accelerator(folder):
    host = unlisted(b200_host(), folder)
    if folder not in ("/usr/lib", "/etc"):
        host = without(host, folder)
    verdict = judged(host)
    assert verdict.verdict in ("eligible", "undetermined") and len(verdict.devices) == 8


def test_a_compiler_that_was_not_recorded_is_unknown_and_not_missing():
    host = b200_host(cmds={"g++ -E -P -x c++ -": None}, files={"/usr/bin/g++": "<exe>"})
    assert finding(judged(host), "compiler.host").outcome == "unknown"
    gone = b200_host(cmds={"g++ -E -P -x c++ -": say("", 127, "g++: command not found")})
    assert finding(judged(gone), "compiler.host").outcome == "fail"
