"""Checks of kind ``os``."""

from __future__ import annotations

from deepinfer.probes.check import FAIL, PASS, Case, Finding, check


@check("os.kernel", aspects=("build", "run"))
def kernel(case: Case) -> Finding:
    """The operating system is Linux."""
    system = case.view.system().value
    needed = case.index["baseline"]["os"]
    if system == needed:
        return Finding(PASS, case.facts.distribution() or system, needed=needed)
    return Finding(FAIL, str(system), needed=needed, fix="use a Linux host, or a Linux container with the device in it")


@check("os.machine", aspects=("build", "run"))
def machine(case: Case) -> Finding:
    """The processor architecture is one that the matrix names."""
    found = case.view.machine().value
    known = case.index["baseline"]["machines"]
    needed = " or ".join(known)
    if found in known:
        return Finding(PASS, found, needed=needed)
    return Finding(FAIL, str(found), needed=needed, fix="use a host with one of these processors: %s" % needed)
