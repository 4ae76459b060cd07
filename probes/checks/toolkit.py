"""Checks of kind ``toolkit``."""

from __future__ import annotations

from deepinfer.matrix.index import allows
from deepinfer.probes.check import FAIL, PASS, UNKNOWN, WARN, Case, Finding, check
from deepinfer.probes.facts import cann
from deepinfer.probes.facts.arch import soc_name
from deepinfer.probes.facts.versions import dotted
from deepinfer.probes.match import same_soc
from deepinfer.probes.toolchain import missing_architectures

_CUDA_PLACES = "CUDA_HOME, nvcc on PATH, /usr/local/cuda*, /opt/cuda, $CONDA_PREFIX, site-packages/nvidia/cu13"
_WHEELS = [name + "==13.0.*" for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-nvvm")]
_CANN_PLACES = "ASCEND_HOME_PATH, /usr/local/Ascend/cann*, /usr/local/Ascend/ascend-toolkit/latest, ~/Ascend"


@check("toolkit.cuda", aspects=("build",), vendors=("nvidia",))
def cuda_version(case: Case) -> Finding:
    """A CUDA toolkit of the version that the entry needs; whether it is whole is ``toolkit.parts``.

    The version that nvidia-smi prints is the driver's limit, not an installed toolkit.
    """
    spec = case.entry["require"]["toolkit"]["spec"]
    needed = "CUDA " + spec["text"]
    fix = "install CUDA %s, or: pip install %s" % (spec["text"], " ".join(_WHEELS))
    kit = case.toolchain.cuda
    if kit is None:
        looked = (case.view.which("nvcc"), case.view.names("/usr/local"))
        doubt = next((fact.reason for fact in looked if fact.is_unknown), "")
        return Finding(UNKNOWN if doubt else FAIL, doubt or "no nvcc found", needed=needed, where=_CUDA_PLACES, fix=fix)
    found = kit.label + (" (passed over: %s)" % "; ".join(case.toolchain.others) if case.toolchain.others else "")
    if not kit.version:
        outcome = UNKNOWN if kit.doubts and not kit.missing else FAIL
        text = "; ".join(kit.doubts[:2]) or "no toolkit at %s" % kit.root
        return Finding(outcome, text, needed=needed, where=kit.origin, fix=fix)
    if allows(spec, kit.version):
        return Finding(PASS, found, needed=needed, where=kit.origin)
    if kit.origin in ("CUDA_HOME", "CUDA_PATH") or kit.origin.startswith("-C"):
        fix = "point %s at CUDA %s" % (kit.origin, spec["text"])
    return Finding(FAIL, found, needed=needed, where=kit.origin, fix=fix)


@check("toolkit.parts", aspects=("build",), vendors=("nvidia",))
def cuda_parts(case: Case) -> Finding | None:
    """The chosen CUDA root holds the compiler and its headers, not only some of them."""
    kit = case.toolchain.cuda
    if kit is None:
        return None
    if not kit.missing and kit.unsure:
        doubt = next(doubt for doubt in kit.doubts if doubt.startswith(kit.unsure[0] + ": "))
        return Finding(UNKNOWN, doubt, needed="nvcc with its headers", where=kit.root, fix="ls -l %s" % kit.root)
    if not kit.missing:
        return Finding(PASS, "complete", where=kit.root)
    names = ", ".join(part for part, _ in kit.missing)
    wheels = sorted({wheel for _, wheel in kit.missing})
    fix = (
        "pip install %s" % " ".join(wheels) if kit.wheels else "reinstall this toolkit, or set CUDA_HOME to a whole one"
    )
    return Finding(FAIL, "missing: %s" % names, needed="nvcc with its headers", where=kit.root, fix=fix)


@check("toolkit.consistent", aspects=("build",), vendors=("nvidia",))
def cuda_consistent(case: Case) -> Finding | None:
    """nvcc, ptxas and cuda.h come from one release. Patch versions of the parts may differ."""
    kit = case.toolchain.cuda
    if kit is None or not kit.version:
        return None
    seen = {"cuda.h": kit.version[:2]}
    if kit.nvcc_release:
        seen["nvcc"] = kit.nvcc_release
    if kit.ptxas_release:
        seen["ptxas"] = kit.ptxas_release
    text = ", ".join("%s %s" % (name, dotted(release)) for name, release in seen.items())
    if len(set(seen.values())) == 1:
        return Finding(PASS, text, where=kit.root)
    return Finding(
        FAIL,
        text,
        needed="one release",
        where=kit.root,
        why="two toolkits are mixed",
        fix="set CUDA_HOME to a whole toolkit",
    )


@check("toolkit.architectures", aspects=("build",), vendors=("nvidia",))
def cuda_architectures(case: Case) -> Finding | None:
    """nvcc itself lists the architecture that the entry is compiled for."""
    kit = case.toolchain.cuda
    if kit is None or any(part == "nvcc" for part, _ in kit.missing):
        return None
    needed = ", ".join("sm_" + arch for arch in case.entry["architectures"])
    if kit.architectures is None:
        reason = next((doubt for doubt in kit.doubts if "--list-gpu-arch" in doubt), "not asked")
        return Finding(UNKNOWN, reason, needed=needed, where=kit.nvcc, fix="run: %s --list-gpu-arch" % kit.nvcc)
    lacking = missing_architectures(kit, case.entry)
    if not lacking:
        return Finding(PASS, needed, needed=needed, where=kit.nvcc)
    return Finding(
        FAIL,
        "nvcc of CUDA %s does not know compute_%s" % (kit.version_text, lacking[0].rstrip("af")),
        needed=needed,
        where=kit.nvcc,
        fix="install CUDA %s" % case.entry["require"]["toolkit"]["spec"]["text"],
    )


@check("toolkit.cann", aspects=("build", "run"), vendors=("ascend",))
def cann_version(case: Case) -> Finding:
    """A CANN toolkit of the version that the entry needs. A pre-release of that version is not that version."""
    spec = case.entry["require"]["toolkit"]["spec"]
    needed = "CANN " + spec["text"]
    fix = "install CANN %s and source its set_env.sh" % spec["text"].lstrip("=").rstrip(".*")
    kit = case.toolchain.cann
    if kit is None:
        base = case.view.names(cann.BASE)
        outcome = UNKNOWN if base.is_unknown else FAIL
        return Finding(outcome, base.reason or "no CANN found", needed=needed, where=_CANN_PLACES, fix=fix)
    if not kit.there:
        return Finding(FAIL, "nothing at %s" % kit.root, needed=needed, where=kit.origin, fix=fix)
    if kit.version is None:
        text = "; ".join(kit.doubts[:2]) or "no version file at %s" % kit.root
        return Finding(UNKNOWN, text, needed=needed, where=kit.origin, fix=fix)
    if case.toolchain.cann_instead:
        fix = "source %s/set_env.sh" % case.view.shown(case.toolchain.cann_instead)
    found = kit.label + (" (also here: %s)" % "; ".join(case.toolchain.others) if case.toolchain.others else "")
    if not allows(spec, kit.version.head):
        return Finding(FAIL, found, needed=needed, where=kit.origin, fix=fix)
    if kit.version.pre:
        why = "%s is a pre-release of %s" % (kit.version.text, dotted(kit.version.head))
        return Finding(FAIL, found, needed=needed, where=kit.origin, why=why, fix=fix)
    return Finding(PASS, kit.label, needed=needed, where=kit.origin)


@check("toolkit.cann_roots", aspects=("build", "run"), vendors=("ascend",))
def cann_roots(case: Case) -> Finding | None:
    """The CANN variables name one toolkit: two set_env.sh sourced in one shell mix their libraries."""
    roots = {}
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH"):
        value = case.view.env_text(name).rstrip("/")
        if value:
            value = value[: -len("/opp")] if name == "ASCEND_OPP_PATH" and value.endswith("/opp") else value
            value = cann.without_machine(value)
            real = case.view.real(value)
            roots[name] = real.value if real.is_present else value
    if len(set(roots.values())) < 2:
        return None
    text = ", ".join("%s=%s" % (name, case.view.shown(root)) for name, root in sorted(roots.items()))
    first = case.view.shown(next(iter(roots.values())))
    return Finding(
        FAIL, text, needed="one root", where="environment", fix="in a new shell: source %s/set_env.sh" % first
    )


@check("toolkit.cann_chip", aspects=("build",), vendors=("ascend",))
def cann_chip(case: Case) -> Finding | None:
    """The installed CANN has a platform file for this very chip."""
    kit = case.toolchain.cann
    if kit is None or not kit.socs:
        return None
    known = [soc_name(name) for name in kit.socs]
    for device in case.devices:
        name = soc_name(device.arch)
        if "_" in name and name not in known:
            fix = "install the ops package of this chip family for CANN %s" % kit.version_text
            return Finding(WARN, "no %s.ini" % device.arch, where=kit.root, fix=fix)
    patterns = case.entry["match"]["soc"]
    if not case.devices and not any(same_soc(pattern, name) for pattern in patterns for name in known):
        return Finding(
            WARN, "no chip of this family", where=kit.root, fix="install the ops package of this chip family"
        )
    return Finding(PASS, "%d chips" % len(known), where=kit.root)
