"""Any text anywhere: parsers that never raise and invent no device, hosts that always get a verdict."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from probe_hosts import HOSTS, INDEX, ascend_host, b200_host, judged
from record_parts import HEADER, gpu_row, npu_table, without

from deepinfer.probes.facts import npu_smi, nvidia_smi
from deepinfer.probes.report import text as report_text
from deepinfer.probes.verdict import EXIT_CODES

NAMES = HEADER.split(", ")
ROWS = [gpu_row(index, "NVIDIA B200", "10.0", "183359 MiB", "580.126.09", "N/A").split(", ") for index in range(4)]
CSV = "\n".join([HEADER, *(", ".join(row) for row in ROWS)]) + "\n"
TABLES = [
    npu_table([(0, "Ascend950PR"), (1, "Ascend950DT")]),
    npu_table([(0, "910B3"), (1, "910B3")], separate=False),
    npu_table([(0, "Ascend910"), (0, "Ascend910")], separate=False),
]
WORDS = st.text(st.characters(exclude_characters=",\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029[]"), max_size=8)
SM100 = [path for path in HOSTS if path.stem.startswith(("b200", "gb200", "lib_module", "container_not"))]
ANY = st.one_of(
    st.text(max_size=60),
    st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from(
        ["", "\x00", "-> /", "-> .", "<exe>", "<dir>", CSV, TABLES[0], "9" * 5000, "٣", "²", "0x", "-1", "{}"]
    ),
)


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(range(len(NAMES))), extra=st.lists(st.tuples(WORDS, WORDS), max_size=3), unit=WORDS)
def test_columns_may_move_and_more_may_come(order, extra, unit):
    extra = [("x_" + name, cell) for name, cell in extra]
    names = [NAMES[place].replace("MiB", unit) for place in order] + [name for name, _ in extra]
    lines = [", ".join(names)]
    lines += [", ".join([row[place] for place in order] + [cell for _, cell in extra]) for row in ROWS]
    rows = nvidia_smi.parse_csv("\n".join(lines))
    assert rows is not None and [row["index"] for row in rows] == ["0", "1", "2", "3"]
    assert {row["compute_cap"] for row in rows} == {"10.0"}


@settings(max_examples=120, deadline=None)
@given(cut=st.integers(0, len(CSV)))
def test_a_table_torn_at_any_byte_lists_no_device_that_is_not_in_it(cut):
    rows = nvidia_smi.parse_csv(CSV[:cut])
    whole = [dict(zip([name.split("[")[0].strip() for name in NAMES], row)) for row in ROWS]
    for row in rows or []:
        assert row["uuid"] in [good["uuid"] for good in whole]


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(ANY, st.text().map(lambda tail: HEADER + "\n" + tail)))
@example(text="index, name\n²,x")
@example(text="index, name\n٣,x")
@example(text="index,index,name\n1,2,x")
@example(text="index,name\n%s,x" % ("9" * 5000))
def test_no_text_breaks_the_parsers_of_nvidia_smi(text):
    for row in nvidia_smi.parse_csv(text) or []:
        assert row["index"] in text and row["name"] in text
        nvidia_smi.mebibytes(row.get("memory.total", ""))
    driver, _ = nvidia_smi.parse_banner(text)
    assert driver in text
    for state, status in nvidia_smi.parse_fabric(text + "\n    Fabric\n" + text):
        assert state in text and (status in text or status == "N/A")
    nvidia_smi.parse_list(text)
    nvidia_smi.mebibytes(text)
    nvidia_smi.explain_failure(1, text, text)
    judged(b200_host(count=1, rows=text.split("\n")))


@settings(max_examples=150, deadline=None)
@given(table=st.sampled_from(TABLES), cut=st.integers(0, 2000), tail=ANY)
def test_no_text_breaks_the_parsers_of_npu_smi(table, cut, tail):
    text = table[:cut] + tail
    for row in npu_smi.parse_info(text) or []:
        assert str(row.npu) in text and row.name in text and row.bus in text.lower()
    for part in npu_smi.soc_of_board(text).split("_"):
        assert part.replace("Ascend", "") in text
    npu_smi.rows_of_mapping(text)
    npu_smi.parse_version(text)
    npu_smi.explain_failure(1, text)


@settings(max_examples=60, deadline=None)
@given(name=WORDS, chip=WORDS, kind=WORDS, extra=WORDS)
def test_a_board_page_is_read_by_key_in_any_order(name, chip, kind, extra):
    lines = ["NPU Name : " + name, "Chip Name : " + chip, "Chip Type : " + kind, "Other %s : %s" % (extra, extra)]
    assert npu_smi.soc_of_board("\n".join(lines)) == npu_smi.soc_of_board("\n".join(reversed(lines)))


@pytest.mark.parametrize("separate", [True, False], ids=["950", "910"])
def test_an_extra_line_of_the_table_is_no_chip(separate):
    table = npu_table([(0, "Ascend950PR"), (1, "Ascend950PR")], separate=separate)
    noise = (
        "| No running processes found in NPU 0 |\n| NPU Chip | Process id | Process name |\n| 0 0 | 1234 | python |\n"
    )
    assert len(npu_smi.parse_info(table + noise) or []) == 2


def replaced(record, pick, value):
    """``record`` with one of its texts replaced by ``value``; ``pick`` says which."""
    record = copy.deepcopy(record)
    places = [("files", name) for name in record["files"]] + [("env", name) for name in record.get("env", {})]
    places += [("cmds", name) for name in record["cmds"]] + [("python", "version"), ("libs", ""), ("os", "")]
    kind, name = places[pick % len(places)]
    if kind == "cmds":
        record["cmds"][name] = (
            {"rc": pick % 3 or None, "out": value, "err": value} if pick % 2 else {"rc": 0, "out": value}
        )
    elif kind == "libs":
        record["libs"] = {
            "nvml": {"path": value, "calls": {"init": [0, True], "count": [0, pick], "name(0)": [0, value]}}
        }
    elif kind == "os":
        record["machine"] = value
    else:
        record.setdefault(kind, {})[name] = value
    return record


@pytest.mark.parametrize("path", SM100, ids=lambda path: path.stem)
@settings(max_examples=40, deadline=None)
@given(pick=st.integers(0, 10**6), value=ANY)
def test_one_text_of_an_sm100_host_may_be_anything_and_its_accelerator_stays(path, pick, value):
    record = json.loads(path.read_text(encoding="utf-8"))
    verdict = judged(replaced(record, pick, value))
    assert verdict.verdict in EXIT_CODES and verdict.verdict != "no-accelerator"
    assert report_text(verdict, INDEX).splitlines()[0]
    json.dumps(verdict.document())


@pytest.mark.parametrize("host", [b200_host(count=1), ascend_host()], ids=["nvidia", "ascend"])
@settings(max_examples=80, deadline=None)
@given(picks=st.lists(st.tuples(st.integers(0, 10**6), ANY), min_size=1, max_size=6))
def test_several_texts_of_a_host_may_be_anything_and_it_gets_a_verdict(host, picks):
    for pick, value in picks:
        host = replaced(host, pick, value)
    verdict = judged(host)
    assert verdict.verdict in EXIT_CODES and verdict.findings
    report_text(verdict, INDEX, everything=True)


NVML_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | ANY | st.lists(st.integers() | ANY, max_size=4)


CALLS = ["init", "count", "driver_version", "cuda_version", "handle(0)", "name(0)", "uuid(0)", "compute_capability(0)"]
CALLS += ["memory_total(0)", "pci(0)", "mig_mode(0)", "mig_max(0)", "mig_handle(0,0)", "mig_name(0,0)", "fabric(0)"]
ANSWERS = st.tuples(st.just(0), NVML_VALUES).map(list) | st.lists(NVML_VALUES, max_size=3) | NVML_VALUES


@settings(max_examples=200, deadline=None)
@given(calls=st.dictionaries(st.sampled_from(CALLS), ANSWERS))
def test_any_answers_of_nvml_give_a_verdict(calls):
    document = json.loads(json.dumps({"calls": {"init": [0, True], "count": [0, 1], **calls}}))
    verdict = judged(b200_host(count=1, libs={"nvml": document}))
    assert verdict.verdict in EXIT_CODES and verdict.verdict != "no-accelerator"
    json.dumps(verdict.document())


CELLS = ANY.map(lambda text: " ".join(text.split()).replace(",", ";").replace("|", "/"))


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, len(NAMES) - 1), value=CELLS)
@example(place=0, value="\u00b2")
@example(place=0, value="\u0663")
@example(place=0, value="9" * 5000)
@example(place=3, value="10.0\x00")
@example(place=6, value="-1:x")
def test_one_cell_of_a_table_may_be_anything_and_the_accelerator_stays(place, value):
    cells = list(ROWS[0])
    cells[place] = value
    verdict = judged(b200_host(count=1, rows=[", ".join(cells)]))
    assert verdict.verdict in EXIT_CODES and verdict.verdict != "no-accelerator"


@pytest.mark.parametrize("table", TABLES, ids=["950", "910B", "A3"])
@settings(max_examples=120, deadline=None)
@given(pick=st.integers(0, 10**4), value=CELLS)
@example(pick=25, value="\u00b2")
@example(pick=26, value="\u00b2 Ascend910")
def test_one_cell_of_the_npu_table_may_be_anything(table, pick, value):
    lines = table.split("\n")
    number = pick % len(lines)
    cells = lines[number].split("|")
    cells[pick % len(cells)] = value
    lines[number] = "|".join(cells)
    npu_smi.parse_info("\n".join(lines))


@pytest.mark.parametrize("number", ["\u00b2", "\u0663", "9" * 5000, "-1", ""], ids=ascii)
@pytest.mark.parametrize("separate", [True, False], ids=["950", "910"])
def test_an_npu_number_that_is_none_is_no_crash(number, separate):
    table = npu_table([(7, "Ascend950PR")], separate=separate).replace("| 7 ", "| %s " % number)
    assert judged(ascend_host(cmds={"npu-smi info": {"rc": 0, "out": table}})).verdict in EXIT_CODES


@pytest.mark.parametrize("number", ["9" * 5000, "\u00b2", "\u0663", "0", "-1"], ids=lambda text: ascii(text)[:12])
def test_numbers_of_any_length_and_script_are_no_crash(number):
    root = "/usr/local/cuda-13.0"
    include = root + "/targets/x86_64-linux/include"
    files = {include + "/crt/host_config.h": "#if __GNUC__ > %s\n#if __clang_major__ >= %s\n" % (number, number)}
    files[include + "/cuda.h"] = "#define CUDA_VERSION %s\n" % number
    release = {"rc": 0, "out": "release %s.%s, V%s.1.2\n" % (number, number, number)}
    cmds = {root + "/bin/nvcc --version": release, root + "/bin/ptxas --version": release}
    cmds["nvidia-smi"] = {"rc": 0, "out": "Driver Version: %s.1 CUDA Version: %s.%s" % (number, number, number)}
    cmds["nvidia-smi -L"] = {"rc": 0, "out": "GPU %s: B200 (UUID: GPU-1)\n" % number}
    cmds["g++ -E -P -x c++ -"] = {"rc": 0, "out": '%s 3 0 a b c "13"\n' % number}
    verdict = judged(b200_host(count=1, mig="Enabled", files={**files, root + "/bin/ptxas": "<exe>"}, cmds=cmds))
    assert verdict.verdict in ("fixable", "undetermined")


@pytest.mark.parametrize("held", ["", "what", "0x", "\x00"], ids=ascii)
def test_a_vendor_file_that_holds_no_number_is_unknown_and_not_another_vendor(held):
    host = b200_host(count=1, files={"/proc/driver/nvidia/version": None}, dev=["/dev/null"])
    host["files"]["/sys/bus/pci/devices/0000:10:00.0/vendor"] = held
    host["listed"].remove("/dev")
    host["dev"] = []
    assert judged(host).verdict == "eligible"  # another source answers
    assert judged(without(host, "nvidia-smi")).verdict == "undetermined"
