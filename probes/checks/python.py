"""Checks of kind ``python``. The probe itself runs on 3.8; the engine does not."""

from __future__ import annotations

from deepinfer.matrix.index import allows
from deepinfer.probes.check import FAIL, PASS, UNKNOWN, Case, Finding, check
from deepinfer.probes.facts.versions import dotted, parse


@check("python.version", aspects=("build", "run"))
def version(case: Case) -> Finding:
    """The interpreter that runs the probe (and would run pip) is CPython of the version that the engine needs."""
    spec = case.entry["require"]["python"]
    facts = case.view.python()
    if not facts.is_present:
        return Finding(UNKNOWN, facts.reason, needed=spec["text"], fix="run the probe with the interpreter in question")
    text = str(facts.value.get("version", ""))
    made = str(facts.value.get("implementation", "")).lower()
    found = parse(text)
    label = "%s %s" % (made or "python", text)
    if found is None:
        return Finding(UNKNOWN, label, needed=spec["text"], fix="run the probe with the interpreter in question")
    if made in ("", "cpython") and allows(spec, found.head) and not found.pre:
        return Finding(PASS, label, needed=spec["text"])
    wanted = "python%s" % dotted(spec["bounds"][0][1])
    other = case.view.which(wanted)
    if other.is_present:
        fix = "use the one that is here: %s -m deepinfer.probe, and pip of the same interpreter" % wanted
    else:
        fix = (
            "install CPython %s (Ubuntu 24.04: sudo apt-get install %s-venv %s-dev; elsewhere: uv python install %s)"
            % (
                wanted[len("python") :],
                wanted,
                wanted,
                wanted[len("python") :],
            )
        )
    return Finding(FAIL, label, needed="CPython " + spec["text"], where="the running interpreter", fix=fix)


@check("python.headers", aspects=("build",))
def headers(case: Case) -> Finding | None:
    """Python.h of the interpreter is installed: the native modules are compiled against it."""
    facts = case.view.python()
    held = facts.value.get("headers") if facts.is_present else None
    text = parse(str(facts.value.get("version", ""))) if facts.is_present else None
    name = "python%s" % dotted(text.head[:2]) if text else "python3"
    if held is True:
        return Finding(PASS, "Python.h is there")
    if held is None:
        return Finding(
            UNKNOWN, facts.reason or "not recorded", needed="Python.h", fix="run the probe on the host itself"
        )
    return Finding(
        FAIL,
        "no Python.h",
        needed="Python.h of %s" % name,
        fix="sudo apt-get install %s-dev   (RHEL, openEuler: sudo dnf install %s-devel)" % (name, name),
    )
