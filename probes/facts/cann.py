"""CANN toolkits of Huawei Ascend: found, and asked for their version and the chips that they know."""

from __future__ import annotations

import re

from deepinfer.probes.facts.versions import Version, parse
from deepinfer.probes.view import HostView, key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.wish import Wish

SYSTEM_INFO = "/etc/Ascend/ascend_cann_install.info"
BASE = "/usr/local/Ascend"
_CFG = r"toolkit_running_version=\[[^:\]]*:([^\]]+)\]"
_MACHINES = ("x86_64-linux", "aarch64-linux")


class Toolkit:
    """One CANN root. ``version`` is None if it could not be read; ``socs`` is None if the chip list could not be."""

    def __init__(self, root: str, origin: str) -> None:
        self.name = "cann"
        self.root = root
        self.origin = origin
        self.version: Version | None = None
        self.there = False
        self.doubts: list[str] = []
        self.socs: list[str] | None = None
        self.compiler = ""

    @property
    def version_text(self) -> str:
        return self.version.text if self.version else ""

    @property
    def label(self) -> str:
        return "CANN %s at %s" % (self.version_text or "of unknown version", self.root)


def inspect(view: HostView, root: str, origin: str) -> Toolkit:
    """Look at one root; ``<root>/<machine>-linux`` is accepted as well."""
    root = without_machine(root)
    kit = Toolkit(root, origin)
    real = view.real(root)
    if real.is_absent:
        return kit
    kit.there = True
    if real.is_present:
        kit.root = real.value
    _read_version(view, kit)
    for machine in _MACHINES:
        configs = view.names("%s/%s/data/platform_config" % (kit.root, machine))
        if configs.is_present:
            kit.socs = sorted(name[:-4] for name in configs.value if name.endswith(".ini"))
            break
    compiler = view.first(
        ["%s/%s" % (kit.root, place) for place in ("bin/bisheng", "tools/bisheng_compiler/bin/bisheng", "bin/ccec")]
    )
    kit.compiler = compiler.value if compiler.is_present else ""
    return kit


def without_machine(root: str) -> str:
    """``/opt/cann/x86_64-linux/`` -> ``/opt/cann``: variables name either."""
    root = root.rstrip("/") or "/"
    for machine in _MACHINES:
        if root.endswith("/" + machine):
            return root[: -len(machine) - 1]
    return root


def _read_version(view: HostView, kit: Toolkit) -> None:
    for machine in _MACHINES:
        path = "%s/%s/ascend_toolkit_install.info" % (kit.root, machine)
        text = view.read(path)
        if text.is_present:
            kit.version = parse(key_values(text.value).get("version", ""))
            if kit.version:
                return
            kit.doubts.append("%s names no version" % path)
        elif text.is_unknown:
            kit.doubts.append("%s: %s" % (path, text.reason))
    info = view.read(kit.root + "/compiler/version.info")
    if info.is_present:
        kit.version = parse(key_values(info.value).get("Version", ""))
    cfg = view.read(kit.root + "/version.cfg")
    match = re.search(_CFG, cfg.value) if cfg.is_present and not kit.version else None
    if match:  # the CANN version stands after the colon, the component's before it
        kit.version = parse(match.group(1))


def explicit(view: HostView, wish: Wish) -> Toolkit | None:
    """The toolkit that the user named or sourced, or None."""
    if wish.toolkit:
        return inspect(view, wish.toolkit, "-C deepinfer.toolkit")
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        value = view.env_text(name).strip()
        if value:
            return inspect(view, value, name)
    return None


def installed(view: HostView) -> list[Toolkit]:
    """Toolkits in the usual places, newest first."""
    places = [BASE + "/cann"]
    folder = view.names(BASE)
    places += ["%s/%s" % (BASE, name) for name in folder.value or [] if name.startswith("cann-")]
    places.append(BASE + "/ascend-toolkit/latest")
    home = view.env_text("HOME")
    if home.startswith("/"):
        places += [home.rstrip("/") + "/Ascend/cann", home.rstrip("/") + "/Ascend/ascend-toolkit/latest"]
    info = view.read(SYSTEM_INFO)
    recorded = key_values(info.value).get("Toolkit_InstallPath", "") if info.is_present else ""
    if recorded:
        places.append(recorded)
    kits, seen = [], set()
    for place in places:
        real = view.real(place)
        if real.is_present and real.value not in seen:
            seen.add(real.value)
            kits.append(inspect(view, real.value, place))
    return sorted(kits, key=lambda kit: kit.version.head if kit.version else (), reverse=True)
