"""Runs scikit-build-core with the gate's settings, in one folder per target, and checks what came out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile

from build_support import inputs
from build_support.metadata import ROOT
from deepinfer.errors import DeepInferError
from deepinfer.probes.artifact import device_code
from deepinfer.probes.artifact.record import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from deepinfer.probes.resolve import Target

REQUIREMENTS = ["scikit-build-core>=1.1,<2", "nanobind>=3.1,<4", "cmake>=3.31", "ninja>=1.11"]
NEEDED_BYTES = 300 << 20  # build folder and wheel of a CUDA target, with room
LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
BUILD_FOLDER = os.path.join(ROOT, "build")


class FolderUnusable(DeepInferError):
    """The build folder cannot be written, or the disk under it is nearly full."""

    code = "DI331"


class BuildBusy(DeepInferError):
    """Another build of the same target is running in this checkout."""

    code = "DI332"


class ToolsMissing(DeepInferError):
    """A build tool is not installed; without build isolation nobody installs it."""

    code = "DI333"


class WrongCode(DeepInferError):
    """The compiled module does not hold exactly the device code that the gate asked for."""

    code = "DI334"


def build(target: Target, machine: str, wheel_folder: str, hook: str, settings: dict[str, Any]) -> str:
    """Build a wheel (``hook``: ``build_wheel`` or ``build_editable``) and return its file name."""
    record = inputs.record_of(target, machine)
    backend = _backend()
    with _folder(target.entry["id"] if target.entry else "") as folder:
        record_path = os.path.join(folder, FILE)
        own = _settings(target, record, folder, record_path)
        _forget_other_inputs(folder, {"versions": record["versions"], **own})
        with open(record_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=1, sort_keys=True) + "\n")
        given = {key: value for key, value in settings.items() if not key.startswith("deepinfer.")}
        words = {**given, **own}
        name: str = getattr(backend, hook)(wheel_folder, words)
        try:
            check(os.path.join(wheel_folder, name), record)
        except BaseException:
            os.unlink(os.path.join(wheel_folder, name))  # a wheel that is not what it says must not survive
            raise
    return name


def _backend() -> Any:
    try:
        from scikit_build_core import build as backend
    except ImportError as error:
        raise ToolsMissing(
            "%s cannot be imported" % error.name,
            fix="pip install %s" % " ".join("'%s'" % name for name in REQUIREMENTS),
        ) from None
    return backend


@contextlib.contextmanager
def _folder(entry: str) -> Iterator[str]:
    """``build/<entry>``, locked against a second build of the same target."""
    import fcntl

    folder = os.path.join(BUILD_FOLDER, entry)
    try:
        os.makedirs(folder, exist_ok=True)
        lock = open(os.path.join(folder, ".lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise FolderUnusable(
            "%s cannot be written: %s" % (folder, error.strerror),
            fix="make the checkout writable, or build from a copy",
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BuildBusy(
                "another build of %s is running here" % entry, fix="wait for it, or build from a copy"
            ) from None
        free = shutil.disk_usage(folder).free
        if free < NEEDED_BYTES:
            raise FolderUnusable(
                "%d bytes are free under %s; a build needs %d" % (free, folder, NEEDED_BYTES), fix="free some space"
            )
        yield folder


def _forget_other_inputs(folder: str, settings: dict[str, Any]) -> None:
    """A cache that another compiler, toolkit or tool version filled would silently decide over the new one."""
    marker = os.path.join(folder, ".inputs")
    text = json.dumps(settings, sort_keys=True)
    try:
        with open(marker, encoding="utf-8") as file:
            same = file.read() == text
    except OSError:
        same = False
    if same:
        return
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name == ".lock":
            continue
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    with open(marker, "w", encoding="utf-8") as file:
        file.write(text)


def _settings(target: Target, record: dict[str, Any], folder: str, record_path: str) -> dict[str, str]:
    """Config settings of scikit-build-core: every define explicitly, every time."""
    toolchain = target.toolchain
    words = toolchain.compiler.words
    launcher = words[0] if len(words) > 1 and os.path.basename(words[0]) in LAUNCHERS else ""
    program = shutil.which(words[1] if launcher else words[0]) or words[0]
    extra = words[2:] if launcher else words[1:]
    defines = {
        "CMAKE_CXX_COMPILER": program,
        "CMAKE_CXX_COMPILER_LAUNCHER": launcher,
        "CMAKE_CXX_FLAGS": " ".join([*extra, "-ffile-prefix-map=%s=." % ROOT, _nanobind_map()]),
        "CMAKE_CXX_FLAGS_RELEASE": inputs.CXX_FLAGS.replace(" -Wl,--exclude-libs,ALL", "") + " -DNDEBUG",
        "CMAKE_MODULE_LINKER_FLAGS": "-Wl,--exclude-libs,ALL",
        "DEEPINFER_ENTRY": record["entry"],
        "DEEPINFER_KIND": record["kind"],
        "DEEPINFER_RECORD": record_path,
    }
    if record["kind"] == "cuda":
        defines.update(
            {
                "CMAKE_CUDA_COMPILER": toolchain.cuda.nvcc,
                "CMAKE_CUDA_HOST_COMPILER": shutil.which(toolchain.cuda_host.words[-1])
                or toolchain.cuda_host.words[-1],
                "CMAKE_CUDA_ARCHITECTURES": ";".join("%s-real" % arch for arch in record["architectures"]),
                "CMAKE_CUDA_FLAGS": inputs.CUDA_FLAGS,
                "CUDAToolkit_ROOT": toolchain.cuda.root,
            }
        )
        if toolchain.cuda.wheels:
            defines.update(_wheel_libraries(toolchain.cuda.root))
    settings = {"cmake.define.%s" % name: value for name, value in defines.items()}
    return {**settings, "build-dir": folder, "cmake.build-type": "Release"}


def _wheel_libraries(root: str) -> dict[str, str]:
    """A toolkit of wheels keeps its libraries in ``lib`` and under versioned names; nvcc and CMake look elsewhere."""
    return {
        "CMAKE_CUDA_FLAGS": "%s -L%s/lib" % (inputs.CUDA_FLAGS, root),
        "CUDA_CUDART": root + "/lib/libcudart.so.13",
    }


def _nanobind_map() -> str:
    """Under build isolation nanobind lies in a folder of a random name; the compiler must not write that name down."""
    import nanobind

    return "-ffile-prefix-map=%s=nanobind" % os.path.dirname(os.path.abspath(nanobind.__file__))


def check(wheel: str, record: dict[str, Any]) -> None:
    """The wheel holds the record and a module with exactly its architectures. Raises :class:`WrongCode`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("deepinfer/_native") and name.endswith(".so")]
        if len(names) != 1 or "deepinfer/" + FILE not in archive.namelist():
            raise WrongCode("the wheel has %d native modules" % len(names), fix="report it")
        data = archive.read(names[0])
    try:
        found = device_code.read(data)
    except device_code.Malformed as error:
        raise WrongCode("the device code of %s cannot be read: %s" % (names[0], error), fix="report it") from None
    wanted = set(record["architectures"])
    if found.cubins != wanted or found.ptx:
        seen = ", ".join(sorted(found.cubins | found.ptx)) or "none"
        raise WrongCode("%s holds %s, not %s" % (names[0], seen, ", ".join(sorted(wanted)) or "none"), fix="report it")
