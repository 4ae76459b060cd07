"""Where a program would find the driver's libraries, and which version they are."""

from __future__ import annotations

from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.view import HostView

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)


def library(view: HostView, soname: str) -> Fact:
    """Real path of a driver library as a program would load it: LD_LIBRARY_PATH, then where drivers put it.

    Stubs are passed over: they carry the name and no driver.
    """
    own = [folder for folder in view.env_text("LD_LIBRARY_PATH").split(":") if folder.startswith("/")]
    folders = [folder.rstrip("/") for folder in own if "/stubs" not in folder] + list(LIBRARY_FOLDERS)
    doubt = ""
    for folder in folders:
        path = "%s/%s" % (folder, soname)
        fact = view.real(path)
        if fact.is_present and "/stubs/" not in fact.value:
            return present(fact.value, path)
        if fact.is_present:
            continue
        if fact.is_unknown:
            # a link whose target nobody recorded still names the version
            target = view.link(path)
            if target.is_present:
                return present("%s/%s" % (folder, target.value.rpartition("/")[2]), path)
            doubt = doubt or fact.reason
    return unknown(doubt, soname) if doubt else absent(soname)


def library_version(path: str) -> str:
    """``/usr/lib/libcuda.so.580.126.09`` -> ``580.126.09``; an empty string for a plain soname."""
    tail = path.rpartition(".so.")[2]
    return tail if "." in tail and tail[0].isdigit() else ""
