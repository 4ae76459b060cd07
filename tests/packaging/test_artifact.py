"""Wheels as a user gets them: what they hold, that they verify, and that nothing of another host's code runs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment

from deepinfer.probes.artifact.device_code import read


@pytest.fixture
def reference(environment: Callable[[str], Environment], reference_wheel: Path) -> Environment:
    """An environment with the reference wheel installed."""
    made = environment("reference")
    done = made.front_end("pip", "install", str(reference_wheel))
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def module_of(made: Environment) -> Path:
    found = made.run("-c", "import importlib.util as u; print(u.find_spec('deepinfer._native').origin)")
    return Path(found.stdout.strip())


def test_the_reference_wheel_loads_verifies_and_notices_one_changed_byte(reference: Environment) -> None:
    assert reference.load().stdout.strip() == "host-cpu"
    verified = reference.run("-m", "deepinfer.artifact", "verify", "--json")
    document = json.loads(verified.stdout)
    assert (verified.returncode, document["ok"]) == (0, True)
    module = module_of(reference)
    data = bytearray(module.read_bytes())
    data[len(data) // 2] ^= 1
    module.write_bytes(bytes(data))
    verified = reference.run("-m", "deepinfer.artifact", "verify")
    assert verified.returncode == 1
    assert "DI312" in verified.stdout
    refused = reference.load()
    assert "DI312: " in refused.stderr
    assert "Traceback" in refused.stderr, "an exception of the user's own program, not a crash"
    record = module.parent / "_build_record.json"
    record.write_text(record.read_text(encoding="utf-8").replace("host-cpu", "nvidia-sm100"), encoding="utf-8")
    assert "DI311: " in reference.load().stderr


def test_importing_the_package_is_silent_and_touches_no_native_code(reference: Environment) -> None:
    code = "import sys, deepinfer; print([n for n in sys.modules if n.startswith('deepinfer')])"
    done = reference.run("-W", "error", "-c", code)
    assert (done.stdout.strip(), done.stderr) == ("['deepinfer']", "")


def test_the_matrix_sources_and_evidence_do_not_ship(reference: Environment) -> None:
    package = module_of(reference).parent
    assert (package / "matrix/index.json").is_file()
    assert not list(package.rglob("*.toml"))
    assert not (package / "tests").exists()


def test_sm100_is_cross_built_holds_exactly_its_code_and_refuses_to_run_here(
    environment: Callable[[str], Environment], sdist: Path, sm100_cxx: str, tmp_path: Path
) -> None:
    made = environment("cross")
    words = ["wheel", str(sdist), "--no-deps", "-w", str(tmp_path), "-C", "deepinfer.target=nvidia-sm100"]
    done = made.front_end("pip", *words, CXX=sm100_cxx)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        code = read(archive.read(name))
        record = json.loads(archive.read("deepinfer/_build_record.json"))
    assert (code.cubins, code.ptx) == ({"100a"}, set())
    assert record["architectures"] == ["100a"]
    assert record["verified_on_device"] is False
    done = made.front_end("pip", "install", str(wheel), "--no-index")
    assert done.returncode == 0, done.stderr
    imported = made.run("-c", "from deepinfer import _native; print(_native.capabilities()['cuda'])")
    assert imported.stdout.strip() == "True", imported.stderr
    refused = made.load()
    assert refused.returncode != 0
    assert "DI32" in refused.stderr
    assert "the artifact is for nvidia-sm100" in refused.stderr
    verified = made.run("-m", "deepinfer.artifact", "verify", "--json")
    assert json.loads(verified.stdout)["ok"] is True, "as built; that it cannot run here is said as a warning"


def test_a_toolkit_of_wheels_builds_it_too(
    environment: Callable[[str], Environment], sdist: Path, sm100_cxx: str, cuda_of_wheels: Path, tmp_path: Path
) -> None:
    made = environment("wheels")
    words = ["wheel", str(sdist), "--no-deps", "-w", str(tmp_path), "-C", "deepinfer.target=nvidia-sm100"]
    done = made.front_end("pip", *words, "-C", f"deepinfer.toolkit={cuda_of_wheels}", CXX=sm100_cxx)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        assert read(archive.read(name)).cubins == {"100a"}


def contents(wheel: Path) -> tuple[str, bytes]:
    """(artifact id, native module)"""
    with zipfile.ZipFile(wheel) as archive:
        (module,) = [entry for entry in archive.namelist() if entry.endswith(".so")]
        record = json.loads(archive.read("deepinfer/_build_record.json"))
        return record["artifact_id"], archive.read(module)


def test_two_builds_of_one_tree_have_the_same_id_and_bytes(
    environment: Callable[[str], Environment], sdist: Path, reference_wheel: Path, tmp_path: Path
) -> None:
    made = environment("again")
    words = ["wheel", str(sdist), "--no-deps", "--no-cache-dir", "-w", str(tmp_path)]
    done = made.front_end("pip", *words, "-C", "deepinfer.target=host-cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    first, second = contents(reference_wheel), contents(wheel)
    assert first[0] == second[0]
    assert first[1] == second[1], "the same bytes: no path, time or random name is compiled in"
