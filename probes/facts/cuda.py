"""CUDA toolkits: found, resolved to their root, and asked about themselves.

The version comes from ``cuda.h`` and is compared with what nvcc says; the newest host compiler that nvcc takes comes
from the toolkit's own ``crt/host_config.h``; the architectures from ``nvcc --list-gpu-arch``. Nothing here ages.
"""

from __future__ import annotations

import re

from deepinfer.probes.facts.versions import dotted
from deepinfer.probes.redact import excerpt
from deepinfer.probes.view import HostView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.wish import Wish

TARGETS = ("x86_64-linux", "sbsa-linux", "aarch64-linux")
_CUDA_VERSION = r"#define\s+(?:CUDA_VERSION|CUDART_VERSION)\s+(\d{4,6})\b"
_NVCC_RELEASE = r"release (\d{1,4})\.(\d{1,4}), V(\d+(?:\.\d+)+)"
_GCC_BOUND = r"#if __GNUC__ > (\d{1,4})\b"
_CLANG_BOUND = r"__clang_major__ >= (\d{1,4})\b"
_TOP = r"#\$ TOP=(\S+)"
_ARCH = r"(?m)^compute_(\d+[af]?)$"

# part -> (places under the root, wheel that brings it where the toolkit is made of wheels)
PARTS = {
    "nvcc": (("bin/nvcc",), "nvidia-cuda-nvcc"),
    "cuda.h": (("include/cuda.h", *("targets/%s/include/cuda.h" % name for name in TARGETS)), "nvidia-cuda-runtime"),
    "crt/host_config.h": (
        ("include/crt/host_config.h", *("targets/%s/include/crt/host_config.h" % name for name in TARGETS)),
        "nvidia-cuda-crt",
    ),
}
# wheels come one by one, so there each of these is asked for as well
WHEEL_PARTS = {
    "ptxas": (("bin/ptxas",), "nvidia-cuda-nvcc"),
    "cicc": (("nvvm/bin/cicc",), "nvidia-nvvm"),
    "libcudart": (("lib/libcudart.so.13", "lib/libcudart.so", "lib64/libcudart.so"), "nvidia-cuda-runtime"),
}
# only to tell a full toolkit from a stub install of a newer one
SCORED = ("bin/ptxas", "bin/cudafe++", "nvvm/bin/cicc", "include/curand.h", "lib64/libcudart.so", "version.json")


class Toolkit:
    """One CUDA root. Empty values mean "not found out"; ``doubts`` are reasons why something could not be read."""

    def __init__(self, root: str, origin: str) -> None:
        self.name = "cuda"
        self.root = root
        self.origin = origin
        self.version: tuple[int, ...] = ()
        self.version_text = ""
        self.nvcc_release: tuple[int, int] | None = None
        self.ptxas_release: tuple[int, int] | None = None
        self.missing: list[tuple[str, str]] = []  # (part, wheel)
        self.unsure: list[str] = []  # parts of which nobody could tell whether they are there
        self.doubts: list[str] = []
        self.architectures: set[str] | None = None
        self.max_gcc: int | None = None
        self.max_clang: int | None = None
        self.score = 0

    @property
    def nvcc(self) -> str:
        return self.root + "/bin/nvcc"

    @property
    def wheels(self) -> bool:
        return self.root.endswith("/nvidia/cu13")

    @property
    def label(self) -> str:
        return "CUDA %s at %s" % (self.version_text or "of unknown version", self.root)


def inspect(view: HostView, root: str, origin: str, *, deep: bool = True) -> Toolkit:
    """Look at one root. ``deep`` also runs nvcc and ptxas."""
    kit = Toolkit(root.rstrip("/") or "/", origin)
    parts = dict(PARTS, **WHEEL_PARTS) if kit.wheels else PARTS
    for part, (places, wheel) in parts.items():
        found = view.first(["%s/%s" % (kit.root, place) for place in places])
        if found.is_absent:
            kit.missing.append((part, wheel))
        elif found.is_unknown:
            kit.unsure.append(part)
            kit.doubts.append("%s: %s" % (part, found.reason))
        elif part == "cuda.h":
            _read_version(view, found.value, kit)
        elif part == "crt/host_config.h":
            _read_bounds(view, found.value, kit)
    kit.score = sum(1 for place in SCORED if view.exists("%s/%s" % (kit.root, place)).is_present) - 10 * len(
        kit.missing
    )
    if deep and not any(part == "nvcc" for part, _ in kit.missing):
        _ask_nvcc(view, kit)
    return kit


def _read_version(view: HostView, path: str, kit: Toolkit) -> None:
    text = view.lines(path, _CUDA_VERSION)
    match = re.search(_CUDA_VERSION, text.value) if text.is_present else None
    if match:
        number = int(match.group(1))
        kit.version = (number // 1000, number % 1000 // 10)
        kit.version_text = dotted(kit.version)
    else:
        kit.doubts.append("%s: %s" % (path, text.reason or "no CUDA_VERSION in it"))


def _read_bounds(view: HostView, path: str, kit: Toolkit) -> None:
    text = view.lines(path, "%s|%s" % (_GCC_BOUND, _CLANG_BOUND))
    if not text.is_present:
        kit.doubts.append("%s: %s" % (path, text.reason))
        return
    gcc, clang = re.search(_GCC_BOUND, text.value), re.findall(_CLANG_BOUND, text.value)
    kit.max_gcc = int(gcc.group(1)) if gcc else None
    kit.max_clang = max(int(bound) for bound in clang) - 1 if clang else None


def _ask_nvcc(view: HostView, kit: Toolkit) -> None:
    answer = view.run([kit.nvcc, "--version"])
    match = re.search(_NVCC_RELEASE, answer.value.out) if answer.is_present and answer.value.rc == 0 else None
    if match:
        kit.nvcc_release = (int(match.group(1)), int(match.group(2)))
        kit.version = kit.version or kit.nvcc_release
        kit.version_text = match.group(3) if kit.nvcc_release == kit.version else kit.version_text
    elif not (answer.is_unknown and answer.reason == "not recorded"):
        kit.doubts.append("nvcc --version: %s" % _why(answer))
    listing = view.run([kit.nvcc, "--list-gpu-arch"])
    found = set(re.findall(_ARCH, listing.value.out)) if listing.is_present and listing.value.rc == 0 else set()
    if found:
        kit.architectures = found
    else:
        kit.doubts.append("nvcc --list-gpu-arch: %s" % _why(listing))
    ptxas = kit.root + "/bin/ptxas"
    if view.exists(ptxas).is_present:
        words = view.run([ptxas, "--version"])
        match = re.search(_NVCC_RELEASE, words.value.out) if words.is_present else None
        kit.ptxas_release = (int(match.group(1)), int(match.group(2))) if match else None


def _why(answer: object) -> str:
    reason = getattr(answer, "reason", "")
    value = getattr(answer, "value", None)
    if value is None:
        return reason or "not there"
    return "exit code %d: %s" % (value.rc, excerpt(value.err or value.out, 120))


def root_of_nvcc(view: HostView, path: str) -> str:
    """The root of the nvcc at ``path``, through links and wrapper scripts; an empty string if it will not say."""
    real = view.real(path)
    if real.is_present and real.value.endswith("/bin/nvcc"):
        root = real.value[: -len("/bin/nvcc")] or "/"
        places = ["%s/%s" % (root.rstrip("/"), place) for place in PARTS["cuda.h"][0]]
        if view.first(places).is_present:
            return root
    answer = view.run([path, "--dryrun", "-x", "cu", "/dev/null"])
    match = re.search(_TOP, answer.value.err + answer.value.out) if answer.is_present else None
    if match:
        top = view.real(match.group(1))
        return top.value if top.is_present else ""
    return real.value[: -len("/bin/nvcc")] if real.is_present and real.value.endswith("/bin/nvcc") else ""


def explicit(view: HostView, wish: Wish) -> Toolkit | None:
    """The toolkit that the user named, or None."""
    if wish.toolkit:
        return inspect(view, wish.toolkit, "-C deepinfer.toolkit")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = view.env_text(name).strip()
        if value:
            return inspect(view, value, name)
    return None


def on_path(view: HostView) -> Toolkit | None:
    """The toolkit of the nvcc on PATH, or None."""
    found = view.which("nvcc")
    if not found.is_present:
        return None
    root = root_of_nvcc(view, found.value)
    return inspect(view, root, "nvcc on PATH (%s)" % found.value) if root else None


def elsewhere(view: HostView, known: list[str]) -> list[Toolkit]:
    """Toolkits in the usual places but ``known``, best first: complete before incomplete, then newer."""
    places = []
    local = view.names("/usr/local")
    for name in local.value or []:
        if name == "cuda" or name.startswith("cuda-"):
            places.append("/usr/local/" + name)
    places += ["/opt/cuda", "/usr/lib/cuda"]
    conda = view.env_text("CONDA_PREFIX")
    if conda:
        places.append(conda)
    python = view.python()
    site = python.value.get("site_packages") if python.is_present else None
    if isinstance(site, str) and site:
        places.append(site + "/nvidia/cu13")
    places.append("/usr")
    kits, seen = [], set(known)
    for place in places:
        real = view.real(place)
        if not real.is_present or real.value in seen:
            continue
        seen.add(real.value)
        signs = ("bin/nvcc", *PARTS["cuda.h"][0])  # libraries without a compiler are a toolkit that lacks a part
        if place.endswith("/nvidia/cu13") or any(view.exists(real.value + "/" + sign).is_present for sign in signs):
            kits.append(inspect(view, real.value, place, deep=False))
    return sorted(kits, key=lambda kit: (kit.score, kit.version), reverse=True)
