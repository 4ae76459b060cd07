"""Checks of kind ``compiler``."""

from __future__ import annotations

from deepinfer.matrix.index import allows
from deepinfer.probes.check import FAIL, PASS, UNKNOWN, WARN, Case, Finding, check
from deepinfer.probes.facts.compiler import Compiler
from deepinfer.probes.toolchain import above_bound
from deepinfer.probes.view import key_values, text_of


@check("compiler.host", aspects=("build",))
def host(case: Case) -> Finding:
    """The C++ compiler for host code is of a family and version that the entry allows.

    ``-C deepinfer.cxx`` and ``CXX`` are taken as they are; without them plain g++ if it qualifies, else the newest
    ``g++-N`` on PATH that does.
    """
    chosen = case.toolchain.compiler
    needed = needed_text(case)
    if chosen is None:
        return Finding(UNKNOWN, "not looked for", needed=needed)
    where = "%s (from %s)" % (chosen.path, chosen.origin)
    trouble = _unusable(case, chosen, needed, where)
    if trouble:
        return trouble
    spec = case.entry["require"]["compilers"].get(chosen.family)
    found = "%s at %s" % (chosen.label, chosen.path)
    if spec and allows(spec, chosen.version):
        return Finding(PASS, found, needed=needed, where=where)
    return Finding(FAIL, found, needed=needed, where=where, fix=_install(case, needed))


@check("compiler.cuda_host", aspects=("build",), vendors=("nvidia",))
def cuda_host(case: Case) -> Finding | None:
    """The compiler that nvcc calls for host code is one that this very nvcc accepts.

    The bound is read from the toolkit's own crt/host_config.h. ``-C deepinfer.cuda_host_cxx``, ``CUDAHOSTCXX`` and
    ``NVCC_CCBIN`` name it; otherwise it is the host compiler.
    """
    chosen, kit = case.toolchain.cuda_host, case.toolchain.cuda
    if chosen is None or kit is None or (chosen is case.toolchain.compiler and chosen.problem):
        return None
    needed = needed_text(case)
    where = "%s (from %s)" % (chosen.path, chosen.origin)
    trouble = _unusable(case, chosen, needed, where)
    if trouble:
        return trouble
    bound = above_bound(chosen, kit)
    found = "%s at %s" % (chosen.label, chosen.path)
    if bound is not None:
        name = "g++-%d" % bound if chosen.family == "gcc" else "clang++-%d" % bound
        return Finding(
            FAIL,
            found,
            needed="%s <= %d, the newest that nvcc of %s takes" % (chosen.label.split(" ")[0], bound, kit.label),
            where=where,
            fix="install %s and: export CUDAHOSTCXX=%s" % (name, name),
        )
    spec = case.entry["require"]["compilers"].get(chosen.family)
    if not spec or not allows(spec, chosen.version):
        if chosen is case.toolchain.compiler:
            return None  # compiler.host says it already
        return Finding(FAIL, found, needed=needed, where=where, fix="export CUDAHOSTCXX to %s" % needed)
    if chosen.family == "gcc" and kit.max_gcc is None:
        why = "crt/host_config.h of this toolkit does not say which is the newest GCC that it takes"
        return Finding(WARN, found, needed=needed, where=where, why=why, fix="read the release notes of %s" % kit.label)
    limit = "" if kit.max_gcc is None else " and GCC <= %d for nvcc" % kit.max_gcc
    return Finding(PASS, found, needed=needed + limit, where=where)


def needed_text(case: Case) -> str:
    """``GCC >=13.0`` or ``GCC >=12 or Clang >=16``."""
    names = {"gcc": "GCC", "clang": "Clang"}
    specs = sorted(case.entry["require"]["compilers"].items(), reverse=True)
    return " or ".join("%s %s" % (names.get(family, family), spec["text"]) for family, spec in reversed(specs))


def _unusable(case: Case, chosen: Compiler, needed: str, where: str) -> Finding | None:
    if chosen.problem:
        outcome, fix = (
            (UNKNOWN, "run: %s --version" % chosen.path) if chosen.unknown else (FAIL, _install(case, needed))
        )
        return Finding(outcome, "%s: %s" % (chosen.path, chosen.problem), needed=needed, where=where, fix=fix)
    machine = case.view.machine().value
    if chosen.machine and chosen.machine != machine:
        return Finding(
            FAIL,
            "%s at %s compiles for another processor (%s)" % (chosen.label, chosen.path, chosen.machine),
            needed="a compiler for %s" % machine,
            where=where,
            fix="export CXX=/path/to/a/native/g++",
        )
    return None


def _install(case: Case, needed: str) -> str:
    """How to get a compiler on this distribution.

    Never ``apt-get install g++-13`` blindly: Debian 12 has no such package, and apt would take the name as a pattern.
    """
    release = key_values(text_of(case.view.read("/etc/os-release")))
    name, version = release.get("ID", "").strip('"'), release.get("VERSION_ID", "").strip('"')
    toolset = case.view.first(["/opt/rh/gcc-toolset-%d/root/usr/bin/g++" % number for number in (14, 13)])
    if toolset.is_present:
        return "export CXX=%s" % toolset.value
    if name == "ubuntu" and version >= "24.04":
        return "sudo apt-get install g++-13"
    if name == "debian" and version == "12":
        return (
            "Debian 12 packages no GCC >= 13: use Debian 13 or Ubuntu 24.04, or export CXX=/path/to/g++ of %s" % needed
        )
    if name in ("rhel", "rocky", "almalinux", "centos"):
        return "sudo dnf install gcc-toolset-13-gcc-c++ && source /opt/rh/gcc-toolset-13/enable"
    return "install %s and: export CXX=/path/to/it" % needed
