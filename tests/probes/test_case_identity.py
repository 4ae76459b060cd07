"""Field failures C-29 to C-45: which device it is, which of them are visible, and the fabric between them."""

from __future__ import annotations

import ast

import pytest
from probe_hosts import INDEX, ROOT, b200_host, finding, judged, outcomes
from record_parts import HEADER, QUERY, gpu_row, pci, say, uuid

from deepinfer.probes.report import text

MIXED = [
    gpu_row(0, "NVIDIA B200", "10.0", "183359 MiB", "580.126.09", "Disabled"),
    gpu_row(1, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", "97887 MiB", "580.126.09", "Disabled"),
]


def mixed(env=None):
    return b200_host(count=1, rows=MIXED, files=pci("0000:11:00.0", "10de:2bb5"), env=env)


@pytest.mark.parametrize(
    ("name", "cc", "pci_id", "exit_code", "entry"),
    [
        ("NVIDIA B300 SXM6 AC", "10.3", "10de:3182", 4, "nvidia-sm103"),
        ("NVIDIA GB300", "10.3", "10de:31c2", 4, "nvidia-sm103"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", "10de:2bb5", 4, "nvidia-sm120"),
        ("NVIDIA GeForce RTX 5090", "12.0", "10de:2b85", 4, "nvidia-sm120"),
        ("NVIDIA Thor", "11.0", "10de:2b00", 4, "nvidia-sm110"),
        ("NVIDIA Thor", "10.1", "10de:2b00", 4, "nvidia-sm110"),
        ("NVIDIA GH200 480GB", "9.0", "10de:2342", 3, "nvidia-sm90"),
        ("NVIDIA GB200", "10.0", "10de:2941", 0, "nvidia-sm100"),
        ("NVIDIA H200", "9.0", "10de:2335", 3, "nvidia-sm90"),
        ("NVIDIA H20", "9.0", "10de:2329", 3, "nvidia-sm90"),
        ("NVIDIA H20-3e", "9.0", "10de:232c", 3, "nvidia-sm90"),
        ("NVIDIA B200", "10.2", "10de:2901", 4, None),
        ("NVIDIA B200", "10.00", "10de:2901", 4, None),
        ("NVIDIA B200", "100.0", "10de:2901", 4, None),
        ("NVIDIA B200 of a later kind", "13.0", "10de:ffff", 4, None),
    ],
    ids=[
        "C-29",
        "C-29-gb300",
        "C-31",
        "C-31-5090",
        "C-33",
        "C-33-cuda12",
        "C-34-gh200",
        "C-34-gb200",
        "C-34-h200",
        "C-34-h20",
        "C-34-h20-3e",
        "C-30-10.2",
        "C-30-text",
        "C-30-100",
        "C-34-name-lies",
    ],
)
def test_the_compute_capability_decides_and_never_the_name(name, cc, pci_id, exit_code, entry):
    verdict = judged(b200_host(name=name, cc=cc, pci_id=pci_id))
    assert (verdict.exit_code, verdict.entry["id"] if verdict.entry else None) == (exit_code, entry)
    if exit_code == 4:
        lines = text(verdict, INDEX).splitlines()
        assert lines[-2].startswith("why: ") and len(lines[-2]) > 20


@pytest.mark.parametrize(
    ("cc", "pci_id", "words"),
    [
        ("10.3", "10de:3182", ("10.3", "load")),
        ("12.0", "10de:2bb5", ("12.0",)),
        ("11.0", "10de:2b00", ("11.0",)),
        ("12.1", "10de:2e12", ("12.1",)),
    ],
    ids=["C-37", "C-37-sm120", "C-37-sm110", "C-37-sm121"],
)
def test_the_reason_says_why_code_for_sm100_does_not_load_there(cc, pci_id, words):
    verdict = judged(b200_host(cc=cc, pci_id=pci_id))
    found = finding(verdict, "device.entry")
    assert found.outcome == "fail" and all(word in found.why + found.found for word in words)


def test_no_order_is_ever_made_of_architectures_C_30():
    for path in (ROOT / "probes").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(
                isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops
            ):
                sides = [side for side in (node.left, *node.comparators) if not isinstance(side, ast.Call)]
                names = " ".join(ast.unparse(side) for side in sides).lower()
                assert not any(word in names for word in ("arch", "compute", "capab", "soc")), "%s: %s" % (path, names)


@pytest.mark.parametrize("memory", ["183359 MiB", "81559 MiB", "143771 MiB", "1 MiB", "999999999 MiB"], ids=repr)
def test_the_size_of_the_memory_changes_the_capacity_and_nothing_else_C_36(memory):
    verdict = judged(b200_host(memory=memory, count=8))
    assert (verdict.verdict, verdict.entry["id"]) == ("eligible", "nvidia-sm100")
    assert verdict.capacity == ("fits" if 8 * (int(memory.split()[0]) << 20) >= 510286023000 else "does-not-fit")
    assert judged(b200_host(memory=memory, cc="8.0", name="NVIDIA A100", pci_id="10de:20b2")).exit_code == 4


def test_a_host_of_two_kinds_has_a_verdict_per_device_and_says_which_to_use_C_39():
    verdict = judged(mixed())
    devices = [(item["entry"], item["verdict"]) for item in verdict.document()["devices"]]
    assert devices == [("nvidia-sm100", "eligible"), ("nvidia-sm120", "unsupported")]
    assert verdict.verdict == "eligible" and "CUDA_VISIBLE_DEVICES=0" in " ".join(verdict.notes)
    assert verdict.memory_bytes == 183359 << 20  # the other card's memory holds no weight


@pytest.mark.parametrize(
    "order", [["B200", "RTX"], ["RTX", "B200"], ["RTX", "RTX", "B200"]], ids=lambda order: "-".join(order)
)
def test_the_place_of_the_right_device_does_not_matter_C_39(order):
    cards = {"B200": ("NVIDIA B200", "10.0", "10de:2901"), "RTX": ("NVIDIA GeForce RTX 5090", "12.0", "10de:2b85")}
    rows, files = [], {}
    for index, word in enumerate(order):
        rows.append(gpu_row(index, *cards[word][:2], "183359 MiB", "580.126.09", "N/A"))
        files.update(pci("0000:%02x:00.0" % (0x10 + index), cards[word][2]))
    host = b200_host(count=0, rows=rows, files=files, dev=["/dev/nvidia%d" % n for n in range(3)] + ["/dev/nvidia-uvm"])
    verdict = judged(host)
    assert verdict.verdict == "eligible"
    assert [item.verdict == "eligible" for item in verdict.devices] == [word == "B200" for word in order]
    assert "CUDA_VISIBLE_DEVICES=%d" % order.index("B200") in " ".join(verdict.notes)


@pytest.mark.parametrize(
    ("value", "left", "outcome"),
    [
        ("0,1", [0, 1], "pass"),
        ("3", [3], "pass"),
        ("GPU-" + uuid(3), [2], "pass"),
        ("GPU-%s,GPU-%s" % (uuid(8), uuid(1)), [0, 7], "pass"),
        ("gpu-" + uuid(3), [], "fail"),
        ("GPU-0000", [], "fail"),
        ("", [], "fail"),
        ("-1", [], "fail"),
        ("NoDevFiles", [], "fail"),
        ("1,-1,2", [1], "warn"),
        ("0,99,1", [0], "warn"),
        (" 2 , 3 ", [2, 3], "pass"),
        ("0,0", [0], "warn"),
        ("1,GPU-%s" % uuid(2), [1], "warn"),
        ("0," * 5000, [0], "warn"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it_C_41(value, left, outcome):
    verdict = judged(b200_host(env={"CUDA_VISIBLE_DEVICES": value}))
    assert [item.device.index for item in verdict.devices if item.device.visible] == left
    assert finding(verdict, "exposure.visible").outcome == outcome
    assert verdict.verdict == ("fixable" if outcome == "fail" else "eligible")


@pytest.mark.parametrize(("prefix", "left"), [("GPU-a", [0]), ("GPU-b1", [1]), ("GPU-b", []), ("GPU-c", [])], ids=repr)
def test_a_unique_prefix_of_a_uuid_selects_its_device_C_41(prefix, left):
    starts = ("a1111111", "b1111111", "b2222222")
    rows = [gpu_row(i, "NVIDIA B200", "10.0", "183359 MiB", "580.126.09", "N/A") for i in range(3)]
    rows = [row.replace("00000000-0000", start + "-0000", 1) for row, start in zip(rows, starts)]
    verdict = judged(b200_host(count=3, rows=rows, env={"CUDA_VISIBLE_DEVICES": prefix}))
    assert [item.device.index for item in verdict.devices if item.device.visible] == left


def test_no_uuid_of_a_variable_reaches_the_document_C_41():
    value = "GPU-52a3a85d-3c55-4b1e-9a11-0123456789ab"
    verdict = judged(b200_host(env={"CUDA_VISIBLE_DEVICES": value}))
    assert "52a3a85d" not in str(verdict.document()) + text(verdict, INDEX, everything=True)


@pytest.mark.parametrize("named", [True, False], ids=["C-42-named", "C-42-not-named"])
def test_a_mig_slice_has_its_own_memory_and_is_no_whole_device(named):
    slices = {"1g": 20 << 30, "2g": 40 << 30}
    calls = {
        "init": [0, True],
        "driver_version": [0, "580.126.09"],
        "count": [0, 1],
        "handle(0)": [0, True],
        "compute_capability(0)": [0, [10, 0]],
        "memory_total(0)": [0, 183 << 30],
        "uuid(0)": [0, "GPU-" + uuid(1)],
        "mig_mode(0)": [0, [1, 1]],
        "mig_max(0)": [0, 7],
        "fabric(0)": [0, [3, 0, 0, False]],
    }
    for slot, (profile, size) in enumerate(slices.items()):
        calls["mig_handle(0,%d)" % slot] = [0, True]
        calls["mig_name(0,%d)" % slot] = [0, "NVIDIA B200 MIG %s.x" % profile]
        calls["mig_uuid(0,%d)" % slot] = [0, "MIG-" + uuid(0xA0 + slot)]
        calls["mig_memory_total(0,%d)" % slot] = [0, size]
    env = {"CUDA_VISIBLE_DEVICES": "MIG-" + uuid(0xA1)} if named else {}
    verdict = judged(b200_host(count=1, libs={"nvml": {"calls": calls}}, env=env))
    device = verdict.document()["devices"][0]
    assert device["memory_bytes"] == (40 << 30 if named else 20 << 30)
    assert device["partitions"] == (["2g.x"] if named else ["1g.x", "2g.x"])
    found = finding(verdict, "device.partition")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail") and "-mig 0" in found.fix


def test_a_mig_slice_read_from_text_has_no_size_that_could_be_its_parents_C_42():
    listing = "GPU 0: NVIDIA B200 (UUID: GPU-%s)\n  MIG 2g.45gb     Device  0: (UUID: MIG-%s)\n" % (uuid(1), uuid(0xA0))
    verdict = judged(b200_host(count=1, mig="Enabled", cmds={"nvidia-smi -L": say(listing)}))
    device = verdict.document()["devices"][0]
    assert (device["memory_bytes"], device["partitions"], verdict.capacity) == (None, ["2g.45gb"], "unknown")
    assert "2g.45gb" in finding(verdict, "device.partition").found


@pytest.mark.parametrize(
    ("state", "status", "outcome"),
    [
        ("Completed", "Success", "pass"),
        ("Completed", "Insufficient Resources", "fail"),
        ("In Progress", "N/A", "fail"),
        ("Not Started", "N/A", "fail"),
        ("Completed", "error 999", "fail"),
    ],
    ids=["C-44-good", "C-44", "C-44-progress", "C-44-not-started", "C-44-error"],
)
def test_the_fabric_must_be_completed_with_success(state, status, outcome):
    verdict = judged(b200_host(fabric=(state, status)))
    found = finding(verdict, "fabric.state")
    assert found.outcome == outcome and state in found.found
    assert verdict.verdict == ("eligible" if outcome == "pass" else "fixable")


@pytest.mark.parametrize(
    ("count", "state", "outcome"),
    [(1, "Not Supported", "pass"), (1, "N/A", "pass"), (4, "Not Supported", "warn"), (8, "N/A", "warn")],
    ids=["C-45", "C-45-na", "C-45-four", "C-45-eight"],
)
def test_a_device_without_a_fabric_is_no_failure(count, state, outcome):
    verdict = judged(b200_host(count=count, fabric=(state, "N/A")))
    assert finding(verdict, "fabric.state").outcome == outcome and verdict.verdict == "eligible"


def test_the_fabric_manager_service_is_never_asked_C_45():
    host = b200_host(
        fabric=("Completed", "Success"), cmds={"systemctl is-active nvidia-fabricmanager": say("inactive", 3)}
    )
    assert judged(host).verdict == "eligible"
    assert not [path for path in (ROOT / "probes").rglob("*.py") if '"systemctl' in path.read_text(encoding="utf-8")]


def test_fabric_that_nobody_could_read_on_several_devices_is_unknown_and_not_fine_C_44():
    verdict = judged(b200_host(fabric=None))
    assert verdict.verdict == "undetermined" and outcomes(verdict) == {"fabric.state"}


def test_a_query_without_any_row_lists_no_device_and_leaves_the_bus_C_39():
    verdict = judged(b200_host(cmds={QUERY: say(HEADER + "\n")}))
    assert len(verdict.devices) == 8 and verdict.verdict != "no-accelerator"
