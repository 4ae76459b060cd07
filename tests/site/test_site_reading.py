"""The box reads what the probe really prints, in the probe's own words, by paste, by button and by drop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Page

HOSTS = sorted(path.stem for path in (Path(__file__).resolve().parents[1] / "hosts").glob("*.json"))
Printed = Callable[..., str]


def test_its_sentence_is_the_first_line_of_the_report(page: Page, printed: Printed) -> None:
    for host in HOSTS:
        page.read(printed(host, "--json"))
        assert page.sentence() == printed(host).splitlines()[0], host
        assert "Status changed" not in page.answer(), host


@pytest.mark.parametrize("half", ["build", "run"])
def test_half_a_verdict_reads_as_half(page: Page, printed: Printed, half: str) -> None:
    for host in ("b200x8_baremetal", "b200_driver570_cuda13", "b200_pip_cuda13"):
        page.read(printed(host, "--json", "--for", half))
        assert page.sentence() == printed(host, "--for", half).splitlines()[0], host
    other = {"build": "Running here", "run": "Building here"}[half]
    assert other not in page.details()


# host -> look of the answer, then what is said below it
SAID = {
    "b200x8_baremetal": "eligible | Building here: eligible | Running here: eligible | pip install . | by device: 8",
    "gb200_nvl72_tray": "eligible | Device by device: 4 | KV cache and scratch are not counted",
    "ascend950pr_cann92": "eligible | does not fit | Warnings, none in the way | use more devices",
    "b200_driver570_cuda13": (
        "fixable | To mend: 1 | driver.version | Found: 570.133.20 | Needed: >=580.65.06 | upgrade the driver to | "
        "Could not be read: 1 | fabric.state | grep -A4 Fabric | Building here: eligible | in the way: driver, fabric"
    ),
    "lib_module_mismatch": "fixable | To mend: 3 | driver.libraries | not every size could be read | then ask again",
    "container_not_exposed": "fixable | exposure.nodes | not exposed: no device node here",
    "h20_3e_x4": (
        "draft | until its blockers are closed | kernels-in-the-model | DeepInfer/pull/47 | Device by device: 4"
    ),
    "h100_mig": "draft | cut into slices: 3g.40gb | not every size could be read",
    "h200_measured": "draft | Notes | TORCH_CUDA_ARCH_LIST (90a) is not obeyed",
    "ascend910c_a3_cann91": "draft | RFC 46 | w8a8-weights | Device by device: 16",
    "b300x8_r610": "unsupported | Why: Compute capability 10.3 is not 10.0 | use one of: ascend-950, nvidia-sm100",
    "rtx5090_wsl2": "unsupported | although both are called Blackwell",
    "no_gpu": "no-accelerator | DeepInfer runs on NVIDIA SM100 | deepinfer.target=nvidia-sm100",
    "both_vendors": "fixable | Device by device: 3 | ascend-950 (supported) | CANN 9.1.0",
}


@pytest.mark.parametrize("host", sorted(SAID))
def test_what_it_says(page: Page, printed: Printed, host: str) -> None:
    look, *words = SAID[host].split(" | ")
    page.read(printed(host, "--json"))
    said = page.details()
    assert page.look_of_answer() == look
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize("host", ["h20_3e_x4", "ascend910c_a3_cann91"])
def test_a_draft_gets_no_word_of_hope(page: Page, printed: Printed, host: str) -> None:
    page.read(printed(host, "--json"))
    said = (page.answer() + page.details()).lower()
    assert not [word for word in ("eligible", "is a supported", "fits into", "ready", "works") if word in said]
    green = page.run("return getComputedStyle(document.documentElement).getPropertyValue('--built').trim()")
    assert page.run("return getComputedStyle(document.documentElement).getPropertyValue('--draft').trim()") != green
    colors = page.run(
        """const probe = document.createElement("i"); probe.className = "word pass"; document.body.append(probe);
        const green = getComputedStyle(probe).color; probe.remove();
        return [...document.querySelectorAll("#answer, #answer *, #details > :not(details), #details ul.plain *")]
          .filter((node) => getComputedStyle(node).color === green).map((node) => node.outerHTML)"""
    )
    assert colors == []


def test_an_undetermined_host(page: Page, document: Callable[..., dict[str, Any]]) -> None:
    lost = document("no_gpu")
    lost["verdict"], lost["exit_code"] = "undetermined", 7
    lost["checks"][0].update(outcome="unknown", fix="start the container with its devices (--gpus all)")
    page.read(lost)
    assert page.sentence() == "Undetermined: whether an accelerator is here could not be read."
    assert "--gpus all" in page.details() and "then ask again" in page.details()
    driver = document("b200_driver570_cuda13")
    driver["checks"] = [check for check in driver["checks"] if check["id"] != "driver.version"]
    driver.update(verdict="undetermined", blocking=["fabric"])
    page.read(driver)
    assert page.sentence() == (
        "Undetermined: 8 x NVIDIA B200 (nvidia-sm100) is a supported target, but 1 check (fabric) could not be read."
    )


def test_a_device_that_no_entry_lists(page: Page, document: Callable[..., dict[str, Any]]) -> None:
    unknown = document("b300x8_r610")
    unknown["entry"] = None
    for device in unknown["devices"]:
        device.update(entry=None, arch="99.0", name="NVIDIA X1")
    page.read(unknown)
    assert page.sentence() == (
        "Not listed: 8 x NVIDIA X1. No entry of the support matrix names it; an RFC can propose it."
    )
    assert "no entry lists it" in page.details() and "Status changed" not in page.answer()


def test_hidden_devices_are_said_and_not_counted(page: Page, document: Callable[..., dict[str, Any]]) -> None:
    some = document("b200x8_baremetal")
    for device in some["devices"][4:]:
        device["visible"] = False
    page.read(some)
    assert page.details().count("hidden by the visible-devices variable") == 4
    assert "bytes of 4 x NVIDIA B200" in page.details()


def test_a_copy_with_the_prompt_around_it(page: Page, printed: Printed) -> None:
    page.read("$ python3 -m deepinfer.probe --json\n%s$ " % printed("b200x8_baremetal", "--json"))
    assert page.sentence().startswith("Eligible: 8 x NVIDIA B200")


def test_dropping_a_file_anywhere_reads_it(page: Page, printed: Printed) -> None:
    page.drop(printed("h20_3e_x4", "--json"))
    page.wait_for("Draft RFC only: 4 x NVIDIA H20-3e")
    assert page.run("return document.activeElement.id") == "answer"
    page.drop("not a result")
    page.wait_for("This is not JSON.")
    assert page.details() == ""


def test_dropping_two_files_or_a_huge_one(page: Page, printed: Printed) -> None:
    text = printed("h20_3e_x4", "--json")
    page.drop(text, text)
    assert page.answer().startswith("These are 2 files.")
    page.run(
        """const data = new DataTransfer(); data.items.add(new File([new Uint8Array(5 << 20)], "big.json"));
        document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}))"""
    )
    page.wait_for("This is larger than any probe result")


def test_choosing_a_file_and_one_in_utf_16(page: Page, printed: Printed, tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path = tmp_path / ("%s.json" % encoding)
        path.write_text(printed("b300x8_r610", "--json"), encoding=encoding)
        page.run("document.getElementById('clear').click()")
        # A hidden input takes no keys from a driver, while a person reaches it by the button.
        field = page.run("const field = document.getElementById('file'); field.hidden = false; return field")
        field.send_keys(str(path))
        page.wait_for("Not supported: 8 x NVIDIA B300")


def test_clear_leaves_nothing(page: Page, printed: Printed) -> None:
    page.read(printed("b300x8_r610", "--json"))
    page.run("document.getElementById('clear').click()")
    assert (page.answer(), page.details(), page.look_of_answer()) == ("", "", "")
    assert page.run("return document.getElementById('text').value") == ""
