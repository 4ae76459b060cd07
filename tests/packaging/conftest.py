"""Fixtures of the packaging tests: one source distribution, one folder of build tools, environments on demand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from environments import ROOT, Environment, compiler_for_sm100

from build_support.sdist import build


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-build-core and friends in a folder that PYTHONPATH can name."""
    folder = tmp_path_factory.mktemp("tools")
    requirements = str(ROOT / "build_support/requirements-build.txt")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "-r", requirements]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    return folder / build(str(folder))


@pytest.fixture(scope="session")
def reference_wheel(sdist: Path, tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference target's wheel, built once by pip from the source distribution."""
    folder = tmp_path_factory.mktemp("reference")
    made = Environment(folder / "builder", tools, folder)
    words = ["wheel", str(sdist), "--no-deps", "-w", str(folder), "-C", "deepinfer.target=host-cpu"]
    done = made.front_end("pip", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def index(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A package index that holds the source distribution alone, as a file URL."""
    folder = tmp_path_factory.mktemp("index") / "simple/deepinfer"
    folder.mkdir(parents=True)
    shutil.copy(sdist, folder)
    (folder / "index.html").write_text(f'<a href="{sdist.name}">{sdist.name}</a>', encoding="utf-8")
    return folder.parent.as_uri()


@pytest.fixture(scope="session")
def cuda_of_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA 13.0 toolkit made of wheels, as pip leaves it."""
    folder = tmp_path_factory.mktemp("cuda")
    names = ["nvcc==13.0.88", "crt==13.0.88", "runtime==13.0.96", "cccl==13.0.85"]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    words += [f"nvidia-cuda-{name}" for name in names] + ["nvidia-nvvm==13.0.88"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "nvidia/cu13"


@pytest.fixture
def environment(tmp_path: Path, tools: Path) -> Callable[[str], Environment]:
    return lambda name: Environment(tmp_path / name, tools, tmp_path)


@pytest.fixture(scope="session")
def sm100_cxx() -> str:
    """A compiler for the cross-build. Where PACKAGING_TESTS_CXX promises one, not having it is a failure."""
    found = compiler_for_sm100()
    if not found:
        assert "PACKAGING_TESTS_CXX" not in os.environ, "the compiler that was promised does not qualify"
        pytest.skip("not run: no GCC >= 13 with nvcc 13 here")
    return found
