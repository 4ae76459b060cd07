"""Bad input of the build itself: each has its own error, and nothing half-done is left."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build_support import compile as compiling
from build_support import inputs
from build_support.metadata import ROOT
from deepinfer.errors import DeepInferError

RECORD = {"entry": "nvidia-sm100", "architectures": ["100a"]}


def wheel(folder: Path, module: bytes | None, record: bool = True) -> str:
    path = folder / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        if module is not None:
            archive.writestr("deepinfer/_native.abi3.so", module)
        if record:
            archive.writestr("deepinfer/_build_record.json", "{}")
    return str(path)


def test_a_wheel_without_the_code_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    plain = Path(sys.executable).resolve().read_bytes()
    with pytest.raises(DeepInferError, match="DI334: .* holds none, not 100a"):
        compiling.check(wheel(tmp_path, plain), RECORD)
    compiling.check(wheel(tmp_path, plain), {"architectures": []})


def test_a_wheel_without_module_or_record_is_refused(tmp_path: Path) -> None:
    for path in (wheel(tmp_path, None), wheel(tmp_path, b"\x7fELF", record=False), wheel(tmp_path, b"no elf")):
        with pytest.raises(DeepInferError, match="DI334: "):
            compiling.check(path, {"architectures": []})


def test_a_second_build_of_the_same_target_waits_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "BUILD_FOLDER", str(tmp_path))
    (tmp_path / "host-cpu").mkdir()
    with (tmp_path / "host-cpu/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeepInferError, match="DI332: another build of host-cpu"), compiling._folder("host-cpu"):
            pytest.fail("two builds at once")
    with compiling._folder("host-cpu") as folder:
        assert folder == str(tmp_path / "host-cpu")


def test_a_build_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "build").write_text("a file in the way", encoding="utf-8")
    monkeypatch.setattr(compiling, "BUILD_FOLDER", str(tmp_path / "build"))
    with pytest.raises(DeepInferError, match="DI331: .*cannot be written"), compiling._folder("host-cpu"):
        pytest.fail("there is no such folder")


def test_a_full_disk_is_seen_before_it_is_filled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "BUILD_FOLDER", str(tmp_path))
    monkeypatch.setattr(compiling, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(DeepInferError, match="DI331: .*bytes are free"), compiling._folder("host-cpu"):
        pytest.fail("there is no room")


def test_other_inputs_empty_the_build_folder_and_the_same_ones_do_not(tmp_path: Path) -> None:
    settings = {"cmake.define.CMAKE_CXX_COMPILER": "g++", "versions": {"nanobind": "3.1.0"}}
    (tmp_path / ".lock").touch()
    compiling._forget_other_inputs(str(tmp_path), settings)
    (tmp_path / "CMakeCache.txt").touch()
    (tmp_path / "CMakeFiles").mkdir()
    compiling._forget_other_inputs(str(tmp_path), settings)
    assert (tmp_path / "CMakeCache.txt").exists()
    compiling._forget_other_inputs(str(tmp_path), {**settings, "cmake.define.CMAKE_CXX_COMPILER": "g++-99"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".inputs", ".lock"]


def test_missing_build_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scikit_build_core", None)
    with pytest.raises(DeepInferError, match="DI333: ") as caught:
        compiling._backend()
    assert "scikit-build-core" in caught.value.fix


def test_requirements_are_listed_once_for_both_ways() -> None:
    text = (Path(ROOT) / "build_support/requirements-build.txt").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == compiling.REQUIREMENTS


def test_the_source_digest_sees_every_compiled_byte(tmp_path: Path) -> None:
    (tmp_path / "csrc/core").mkdir(parents=True)
    (tmp_path / "csrc/core/a.h").write_text("int a;", encoding="utf-8")
    first = inputs.source_digest(str(tmp_path))
    (tmp_path / "csrc/core/__pycache__").mkdir()
    (tmp_path / "csrc/core/__pycache__/x.pyc").write_text("noise", encoding="utf-8")
    assert inputs.source_digest(str(tmp_path)) == first
    (tmp_path / "csrc/core/a.h").write_text("int b;", encoding="utf-8")
    assert inputs.source_digest(str(tmp_path)) != first
    assert inputs.source_digest() == inputs.source_digest(str(ROOT))


@pytest.mark.parametrize(
    "defines",
    [
        {},
        {"DEEPINFER_KIND": "gpu"},
        {"DEEPINFER_KIND": "cuda"},
        {
            "DEEPINFER_KIND": "cuda",
            "CMAKE_CUDA_COMPILER": "nvcc",
            "CMAKE_CUDA_HOST_COMPILER": "g++",
            "CMAKE_CUDA_ARCHITECTURES": "native",
        },
    ],
    ids=["by hand", "unknown kind", "no toolkit", "native"],
)
def test_cmake_stops_without_the_settings_of_the_gate(defines: dict[str, str], tmp_path: Path) -> None:
    words = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja"]
    if defines:
        base = {"DEEPINFER_ENTRY": "x", "DEEPINFER_RECORD": "x", "CMAKE_CXX_COMPILER": "g++"}
        words += [f"-D{name}={value}" for name, value in {**base, **defines}.items()]
    env = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode != 0
    assert "DI330: " in done.stderr


def test_a_record_names_no_path_of_this_machine() -> None:
    from build_support import gate

    target = gate.before_build({"deepinfer.target": "host-cpu"})
    text = json.dumps(inputs.record_of(target, gate.machine()))
    assert str(ROOT) not in text
    assert "/usr/" not in text
