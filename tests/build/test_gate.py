"""The gate: what passes, what is refused, with which words; and that metadata and sdist never refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build_support import backend, gate
from build_support.compile import REQUIREMENTS
from deepinfer.matrix.index import load_index
from deepinfer.probes.judge import judge
from deepinfer.probes.recorded import load_record
from deepinfer.probes.report import LINES, text
from deepinfer.probes.wish import Wish

OnHost = Callable[..., None]
HOSTS = Path(__file__).resolve().parents[1] / "hosts"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(SystemExit) as caught:
        call()
    message = caught.value.code
    assert isinstance(message, str), "front ends print a text, not a number"
    return message


REFUSED = {
    "no_gpu": ("No accelerator", "next: "),
    "h200_container": ("Draft RFC only", "rfcs/0047-sm90.md"),
    "ascend910c_a3_cann91": ("Draft RFC only", "rfcs/0046-ascend-910c.md"),
    "b300x8_r610": ("Not supported", "next: use one of"),
    "rtx5090_wsl2": ("Not supported", "next: use one of"),
    "ascend910b_a2_cann85": ("Not supported", "next: use one of"),
    "ascend950pr_cann91_container": ("Fixable", "next: mend"),
    "b200_driver_missing": ("Fixable", "next: mend"),
}


@pytest.mark.parametrize("hook", [backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable])
@pytest.mark.parametrize("name", REFUSED)
def test_unbuildable_hosts_are_refused_before_any_requirement(
    name: str, hook: Callable[..., object], on_host: OnHost
) -> None:
    on_host(name)
    message = refusal(lambda: hook({}))
    first, last = REFUSED[name]
    lines = message.splitlines()
    assert lines[0].startswith(first)
    assert last in lines[-1] or last in lines[-2]
    assert len(lines) <= LINES


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_is_the_report_of_the_probe(name: str, on_host: OnHost) -> None:
    on_host(name)
    index = load_index()
    verdict = judge(load_record(str(HOSTS / f"{name}.json")), index, Wish(), aspect="build")
    assert refusal(lambda: backend.build_wheel("unused")) == text(verdict, index)


@pytest.mark.parametrize("name", ["b200x8_baremetal", "gb200_nvl72_tray", "b200_pip_cuda13", "ascend950pr_cann92"])
def test_buildable_hosts_pass_and_are_told_what_the_build_needs(name: str, on_host: OnHost) -> None:
    on_host(name)
    assert backend.get_requires_for_build_wheel({}) == REQUIREMENTS
    assert backend.get_requires_for_build_editable({}) == REQUIREMENTS
    target = gate.before_build({})
    assert target.allowed
    assert not target.cross


def test_an_old_driver_stops_no_build(on_host: OnHost) -> None:
    on_host("b200_driver570_cuda13")
    target = gate.before_build({})
    assert target.allowed
    assert not target.cross
    assert target.toolchain.cuda.root == "/usr/local/cuda-13.0"
    assert target.architectures == ["100a"]


@pytest.mark.parametrize(("target", "rfc"), [("nvidia-sm90", "RFC 47"), ("ascend-910c", "RFC 46")])
def test_a_named_draft_is_refused_with_its_rfc_on_every_host(target: str, rfc: str, on_host: OnHost) -> None:
    for name in ("no_gpu", "b200x8_baremetal"):
        on_host(name)
        message = refusal(lambda: backend.get_requires_for_build_wheel({"deepinfer.target": target}))
        assert message.startswith("Draft RFC only")
        assert rfc in message


def test_a_named_neighbor_is_refused_with_its_reason(on_host: OnHost) -> None:
    on_host("no_gpu")
    message = refusal(lambda: backend.get_requires_for_build_wheel({"deepinfer.target": "nvidia-sm103"}))
    assert "sm_100a" in message


@pytest.mark.parametrize("wish", [{"deepinfer.target": "nvidia-sm100"}, {}], ids=["key", "variable"])
def test_a_named_target_can_be_fetched_anywhere_and_is_judged_before_the_build(
    wish: dict[str, str], on_host: OnHost
) -> None:
    env = {} if wish else {"DEEPINFER_ACCELERATOR": "nvidia"}
    on_host("cann_only_buildbox", **env)
    assert backend.get_requires_for_build_wheel(wish) == REQUIREMENTS
    message = refusal(lambda: backend.build_wheel("unused", wish))
    assert "toolkit.cuda: no nvcc found" in message
    assert "needed: CUDA >=13,<14" in message
    again = "deepinfer.target=nvidia-sm100" if wish else "DEEPINFER_ACCELERATOR=nvidia pip install ."
    assert again in message.splitlines()[-1]


def test_a_cross_build_is_marked_as_not_verified(on_host: OnHost) -> None:
    on_host("h200_container")
    target = gate.before_build(
        {
            "deepinfer.target": "nvidia-sm100",
            "deepinfer.toolkit": "/usr/local/cuda-13.0",
            "deepinfer.cuda_host_cxx": "g++",
        }
    )
    assert target.cross
    assert any("not verified on a device" in note for note in target.verdict.notes)
    assert any("NVIDIA H200" in note for note in target.verdict.notes)


def test_the_reference_target_is_built_only_by_name(on_host: OnHost) -> None:
    on_host("no_gpu", DEEPINFER_ACCELERATOR="cpu")
    target = gate.before_build({})
    assert target.entry is not None
    assert target.entry["id"] == "host-cpu"


def test_an_explicit_compiler_is_not_second_guessed(on_host: OnHost) -> None:
    on_host("b200x8_baremetal", CXX="/opt/old/g++")
    message = refusal(lambda: backend.build_wheel("unused"))
    assert "/opt/old/g++" in message


BAD_SETTINGS = {
    "unknown key": ({"deepinfer.targt": "x"}, {}, "did you mean 'deepinfer.target'"),
    "unknown entry": ({"deepinfer.target": "nvidia-sm1000"}, {}, "did you mean 'nvidia-sm100'"),
    "empty value": ({"deepinfer.target": ""}, {}, "deepinfer.target"),
    "given twice": ({"deepinfer.target": ["a", "b"]}, {}, "deepinfer.target"),
    "unknown variable": ({}, {"DEEPINFER_ACCELERATER": "nvidia"}, "did you mean 'DEEPINFER_ACCELERATOR'"),
    "unknown value": ({}, {"DEEPINFER_ACCELERATOR": "nvidea"}, "did you mean 'nvidia'"),
    "contradiction": ({"deepinfer.target": "ascend-950"}, {"DEEPINFER_ACCELERATOR": "nvidia"}, "different targets"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_settings_that_do_not_exist_are_errors_with_the_right_name(case: str, on_host: OnHost) -> None:
    settings, env, expected = BAD_SETTINGS[case]
    on_host("b200x8_baremetal", **env)
    message = refusal(lambda: backend.get_requires_for_build_wheel(settings))
    assert message.startswith("DI00")
    assert expected in message
    assert "fix: " in message


def test_two_kinds_of_eligible_devices_must_be_named(on_host: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.probes import resolve

    on_host("b200x8_baremetal")
    real = resolve.judge

    def both(*words: object, **more: object) -> object:
        verdict = real(*words, **more)  # type: ignore[arg-type]
        verdict.eligible_entries = ["ascend-950", "nvidia-sm100"]
        return verdict

    monkeypatch.setattr(resolve, "judge", both)
    message = refusal(lambda: backend.build_wheel("unused"))
    assert message.startswith("DI003: ")
    assert "ascend-950 and nvidia-sm100" in message
