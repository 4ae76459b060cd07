"""Field failures C-87 to C-98: what Ascend tools, drivers and toolkits say."""

from __future__ import annotations

import pytest
from probe_hosts import ascend_host, finding, judged, outcomes
from record_parts import CANN, npu_table, say, without

from deepinfer.probes.facts.arch import soc_name
from deepinfer.probes.facts.npu_smi import parse_info, parse_mapping, soc_of_board
from deepinfer.probes.recorded import RecordedView

A3 = [(0, "Ascend910"), (0, "Ascend910"), (1, "Ascend910"), (1, "Ascend910")]
A3_BOARD = {
    "npu-smi info -t board -i 0 -c 0": say("NPU Name : 9362\nChip ID : 0\nChip Name : Ascend910\n"),
    "npu-smi info -t board -i 1 -c 0": say("NPU Name : 9362\nChip ID : 0\nChip Name : Ascend910\n"),
}
A3_MAP = """NPU ID       Chip ID       Chip Logic ID       Chip Phy-ID       Chip Name
0       0       0       0       Ascend910
0       1       1       1       Ascend910
0       2       -       -       Mcu
1       0       2       2       Ascend910
"""
NEW_MAP = """NPU ID    Slot ID    Chip ID    Chip Phy-ID    Chip Name
0         0          0          0              Ascend950PR
1         1          0          1              Ascend950PR
"""


def identity(verdict):
    return [(item.device.arch, item.entry["id"] if item.entry else None) for item in verdict.devices]


@pytest.mark.parametrize(
    ("board", "pci_id", "arch"),
    [(A3_BOARD, "19e5:d803", "Ascend910_9362"), ({}, "", "Ascend910_93"), ({}, "19e5:d803", "Ascend910_93")],
    ids=["C-87-board", "C-87-two-dies", "C-87-no-board"],
)
def test_two_dies_a_card_called_ascend910_are_the_a3_family(board, pci_id, arch):
    verdict = judged(ascend_host(chips=A3, separate=False, pci_id=pci_id, board=board))
    assert identity(verdict) == [(arch, "ascend-910c")] * 4
    assert (verdict.exit_code, verdict.rfc_number) == (3, 46)


def test_a_bare_ascend910_with_one_die_is_decided_by_the_bus_or_by_nobody_C_87():
    one = [(0, "Ascend910")]
    assert identity(judged(ascend_host(chips=one, separate=False, board={}, pci_id="19e5:d801")))[0][1] == "ascend-910a"
    verdict = judged(ascend_host(chips=one, separate=False, board={}, pci_id=""))
    assert verdict.verdict == "undetermined" and identity(verdict) == [("", None)]


def test_the_management_row_of_the_mapping_is_no_chip_C_87():
    assert [row["Chip Logic ID"] for row in parse_mapping(A3_MAP)] == ["0", "1", "2"]


def test_the_950_mapping_has_other_columns_and_the_npu_id_is_the_logic_id_C_89():
    rows = parse_mapping(NEW_MAP)
    assert [(row["Chip Logic ID"], row["Chip Name"]) for row in rows] == [("0", "Ascend950PR"), ("1", "Ascend950PR")]


def test_a_950_is_never_asked_with_the_option_that_it_rejects_C_89():
    class Asked(RecordedView):
        words: list[str]

        def run(self, argv, stdin="", seconds=10.0):
            self.words.append(" ".join(argv))
            return super().run(argv, stdin, seconds)

    from deepinfer.probes.facts.host import HostFacts
    from deepinfer.probes.wish import Wish

    for board in (None, {}):
        view = Asked(ascend_host(board=board))
        view.words = []
        assert len(HostFacts(view, Wish()).devices) == 2
        assert not [words for words in view.words if " -c" in words and words.startswith("npu-smi")]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (1, 2), (4, 5)], ids=["C-89", "C-98-from-1", "C-98-from-4"])
def test_npu_ids_may_start_anywhere_and_devices_are_numbered_from_zero(first, last):
    verdict = judged(ascend_host(chips=[(first, "Ascend950PR"), (last, "Ascend950PR")]))
    assert verdict.verdict == "eligible"
    assert [item["index"] for item in verdict.document()["devices"]] == [0, 1]
    env = {"ASCEND_RT_VISIBLE_DEVICES": "1"}
    hidden = judged(ascend_host(chips=[(first, "Ascend950PR"), (last, "Ascend950PR")], env=env))
    assert [item.device.visible for item in hidden.devices] == [False, True] and hidden.verdict == "eligible"


def test_a_firmware_that_does_not_match_is_seen_on_a_card_that_is_not_number_zero_C_98():
    page = "NPU Name : 9579\nChip Name : Ascend950PR\nCompatibility : NOK\n"
    verdict = judged(ascend_host(chips=[(4, "Ascend950PR")], board={"npu-smi info -t board -i 4": say(page)}))
    assert finding(verdict, "readiness.health").outcome == "warn"


@pytest.mark.parametrize(
    ("chip", "number"),
    [
        ("Ascend950PR", "9579"),
        ("Ascend950PR", "9589"),
        ("Ascend950PR", "9599"),
        ("Ascend950DT", "9574"),
        ("Ascend950DT", "9582"),
    ],
    ids=lambda word: "C-90-" + word,
)
def test_every_950_name_is_one_family_and_keeps_its_own_bin(chip, number):
    page = say("NPU Name : %s\nChip Name : %s\n" % (number, chip))
    verdict = judged(ascend_host(chips=[(0, chip)], pci_id="", board={"npu-smi info -t board -i 0": page}))
    assert identity(verdict) == [("%s_%s" % (chip, number), "ascend-950")] and verdict.verdict == "eligible"
    confirmed = finding(verdict, "toolkit.cann_chip")
    assert confirmed.outcome == ("pass" if number == "9579" else "warn")


@pytest.mark.parametrize(
    ("name", "pci_id", "entry", "label"),
    [
        ("910B", "", "ascend-910a", "Ascend 910B"),
        ("910B", "19e5:d801", "ascend-910a", "Ascend 910B"),
        ("910B", "19e5:d802", "ascend-910b", "Ascend 910B"),
        ("910ProB", "19e5:d801", "ascend-910a", "Ascend 910ProB"),
        ("910ProB", "", "ascend-910a", "Ascend 910ProB"),
        ("910B2C", "19e5:d802", "ascend-910b", "Ascend 910B2C"),
        ("910B1", "", "ascend-910b", "Ascend 910B1"),
        ("910B3", "", "ascend-910b", "Ascend 910B3"),
        ("910B4-1", "", "ascend-910b", "Ascend 910B4-1"),
        ("310P3", "19e5:d500", "ascend-310p", "Ascend 310P3"),
        ("950PR", "", "ascend-950", "Ascend 950PR"),
        ("910B9", "", None, "Ascend 910B9"),
    ],
    ids=lambda word: "C-92-%s" % (word or "none"),
)
def test_each_product_called_910b_keeps_its_own_name_and_entry(name, pci_id, entry, label):
    verdict = judged(ascend_host(chips=[(0, name)], separate=False, pci_id=pci_id, board={}))
    assert identity(verdict)[0][1] == entry and verdict.devices[0].label == label
    assert verdict.exit_code == (4 if entry != "ascend-950" else 0)


@pytest.mark.parametrize("gone", [None, say("", 127, "npu-smi: command not found")], ids=["C-94", "C-94-not-found"])
def test_without_npu_smi_the_bus_names_the_device(gone):
    verdict = judged(ascend_host(cmds={"npu-smi info": gone}, board={}))
    assert (verdict.exit_code, verdict.entry["id"]) == (0, "ascend-950")
    assert verdict.devices[0].source == "PCI id 19e5:d806"
    assert finding(verdict, "driver.module").found == "25.7.rc1.6"
    assert finding(verdict, "driver.answers").outcome == "warn"


def test_without_npu_smi_and_without_a_bus_entry_a_node_is_a_device_of_unknown_kind_C_94():
    verdict = judged(ascend_host(cmds={"npu-smi info": None}, board={}, pci_id=""))
    assert (verdict.verdict, len(verdict.devices)) == ("undetermined", 2)
    assert finding(verdict, "device.identity").fix


@pytest.mark.parametrize(
    "answer", [say("", None, "no answer in 10 s"), say("你好"), say("")], ids=["hang", "text", "empty"]
)
def test_an_npu_smi_that_says_nothing_is_unknown_and_the_bus_still_names_the_device_C_94(answer):
    verdict = judged(ascend_host(cmds={"npu-smi info": answer}, board={}))
    assert (verdict.verdict, verdict.entry["id"]) == ("undetermined", "ascend-950")
    assert outcomes(verdict) == {"driver.answers"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (say("dcmi module initialize failed. ret is -8005", 251), "HwHiAiUser"),
        (say("dcmi module initialize failed. ret is -8020", 251), "container"),
        (say("", 127, "npu-smi: error while loading shared libraries: libc_sec.so"), "mount"),
        (say("something new", 3), "read its message"),
    ],
    ids=["C-94-8005", "C-94-8020", "C-94-library", "C-94-new"],
)
def test_an_npu_smi_that_fails_says_why_and_what_to_do(answer, words):
    verdict = judged(ascend_host(cmds={"npu-smi info": answer}, board={}))
    found = finding(verdict, "driver.answers")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail") and words in found.fix


@pytest.mark.parametrize(
    "word",
    [
        "Ascend950PR_9579",
        "ASCEND950PR_9579",
        "950PR_9579",
        "ascend950pr_9579",
        "AscendAscend950PR_9579",
        " Ascend950PR_9579\n",
    ],
    ids=lambda word: "C-95 %r" % word,
)
def test_case_and_prefix_of_a_soc_name_are_normalised_once(word):
    assert soc_name(word) == "ascend950pr_9579"
    assert "device.soc_variable" not in {item.id for item in judged(ascend_host(env={"SOC_VERSION": word})).findings}


@pytest.mark.parametrize(
    "word", ["Ascend910C", "ascend910_9391", "ASCEND310P3", "?"], ids=lambda word: "C-95 %r" % word
)
def test_a_soc_variable_that_contradicts_the_board_is_a_warning_and_the_board_wins(word):
    verdict = judged(ascend_host(env={"SOC_VERSION": word}))
    found = finding(verdict, "device.soc_variable")
    assert (verdict.verdict, found.outcome) == ("eligible", "warn")
    assert word in found.found and found.needed == "Ascend950PR_9579" and "SOC_VERSION" in found.fix


def install_info(root, version):
    return {root + "/aarch64-linux/ascend_toolkit_install.info": "version=%s\narch=aarch64\nos=linux\n" % version}


@pytest.mark.parametrize(
    ("root", "version", "outcome"),
    [
        ("/usr/local/Ascend/ascend-toolkit/8.0.0", "8.0.0", "fail"),
        ("/usr/local/Ascend/cann-9.1.0", "9.1.0", "fail"),
        ("/home/u/CANN9.2.0/cann-9.2.0", "9.2.0", "pass"),
        ("/opt/cann-9.2.1", "9.2.1", "pass"),
        ("/opt/cann-9.20.0", "9.20.0", "fail"),
        ("/opt/cann-9.2.0-beta.2", "9.2.0-beta.2", "fail"),
        ("/opt/cann-9.2.T501", "9.2.T501", "fail"),
    ],
    ids=lambda word: "C-96-" + word.rpartition("/")[2],
)
@pytest.mark.parametrize("machine", ["", "/aarch64-linux"], ids=["root", "machine-folder"])
def test_the_sourced_toolkit_is_judged_in_either_layout(root, version, outcome, machine):
    env = {"ASCEND_HOME_PATH": root + machine, "ASCEND_TOOLKIT_HOME": root, "ASCEND_OPP_PATH": root + "/opp"}
    files = dict(
        install_info(root, version), **{"/etc/Ascend/ascend_cann_install.info": "Toolkit_InstallPath=%s\n" % CANN}
    )
    verdict = judged(ascend_host(env=env, files=files))
    found = finding(verdict, "toolkit.cann")
    assert found.outcome == outcome and version in found.found and found.where == "ASCEND_HOME_PATH"
    assert (verdict.verdict == "eligible") == (outcome == "pass")
    if outcome == "fail":  # the other one, which would do, is named with the command that takes it
        assert "9.2" in found.needed and found.fix == "source %s/set_env.sh" % CANN


def test_two_toolkits_sourced_in_one_shell_are_mixed_C_96():
    files = install_info("/opt/cann-8.5.1", "8.5.1")
    verdict = judged(ascend_host(env={"ASCEND_OPP_PATH": "/opt/cann-8.5.1/opp"}, files=files))
    found = finding(verdict, "toolkit.cann_roots")
    assert (verdict.verdict, found.outcome) == ("fixable", "fail") and "/opt/cann-8.5.1" in found.found


def test_one_toolkit_through_links_is_not_two_C_96():
    env = {
        "ASCEND_HOME_PATH": "/usr/local/Ascend/cann",
        "ASCEND_TOOLKIT_HOME": CANN + "/",
        "ASCEND_OPP_PATH": CANN + "/opp",
    }
    assert judged(ascend_host(env=env)).verdict == "eligible"


@pytest.mark.parametrize("home", ["", "/home/u/Ascend/cann"], ids=["C-98-system", "C-98-home"])
def test_a_toolkit_on_disk_that_was_not_sourced_is_fixable_by_sourcing_it(home):
    host = ascend_host(
        env={"ASCEND_HOME_PATH": None, "ASCEND_TOOLKIT_HOME": None, "ASCEND_OPP_PATH": None, "HOME": "/home/u"}
    )
    root = CANN
    if home:
        host = without(host, "/usr/local/Ascend/cann")
        host["files"].update(install_info(home, "9.2.0"))
        root = "~/Ascend/cann"
    verdict = judged(host)
    found = finding(verdict, "readiness.cann_env")
    assert (verdict.verdict, outcomes(verdict)) == ("fixable", {"readiness.cann_env"})
    assert found.fix == "source %s/set_env.sh" % root


@pytest.mark.parametrize("value", ["0", "1,0", "4", "", "-1", "x"], ids=lambda value: "C-98 %r" % value)
def test_visible_devices_are_runtime_ids(value):
    chosen = [number for number in (0, 1) if str(number) in value.replace("-1", "").split(",")]
    verdict = judged(ascend_host(env={"ASCEND_RT_VISIBLE_DEVICES": value}))
    assert [item.device.index for item in verdict.devices if item.device.visible] == chosen
    assert verdict.verdict == ("eligible" if chosen else "fixable")


def test_a_table_in_either_layout_is_read_by_its_header_C_89():
    for separate in (True, False):
        rows = parse_info(npu_table([(0, "Ascend950PR"), (7, "Ascend950DT")], separate=separate)) or []
        assert [(row.npu, row.name, row.memory_bytes) for row in rows] == [
            (0, "Ascend950PR", 128 << 30),
            (7, "Ascend950DT", 128 << 30),
        ]


def test_a_board_page_without_a_chip_names_none_C_90():
    assert soc_of_board("NPU ID : 0\nSoftware Version : 26.0\n") == "" and soc_of_board("Chip Name : NA\n") == ""


def test_a_table_that_nobody_can_parse_leaves_the_mapping_C_87_C_89():
    garbled = {"npu-smi info": say("| a new | table |\n"), "npu-smi info -m": say(NEW_MAP)}
    verdict = judged(ascend_host(cmds=garbled))
    assert identity(verdict) == [("Ascend950PR_9579", "ascend-950")] * 2 and verdict.verdict == "eligible"
    garbled["npu-smi info -m"] = say(A3_MAP)
    verdict = judged(ascend_host(cmds=garbled, board={}, pci_id=""))
    assert [entry for _, entry in identity(verdict)] == ["ascend-910c", "ascend-910c", None]
