"""``HostFacts``: every fact of one host, each read at most once and only when somebody asks."""

from __future__ import annotations

from deepinfer.probes.fact import Fact
from deepinfer.probes.facts import ascend, nvidia, pci
from deepinfer.probes.view import HostView, key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.facts.device import Device
    from deepinfer.probes.wish import Wish


class HostFacts:
    """Facts of ``view``; ``wish`` may name compilers and toolkits."""

    def __init__(self, view: HostView, wish: Wish) -> None:
        self.view = view
        self.wish = wish
        self._bus: Fact | None = None
        self._nvidia: nvidia.NvidiaFacts | None = None
        self._ascend: ascend.AscendFacts | None = None

    @property
    def bus(self) -> Fact:
        if self._bus is None:
            self._bus = pci.accelerators(self.view)
        return self._bus

    @property
    def nvidia(self) -> nvidia.NvidiaFacts:
        if self._nvidia is None:
            self._nvidia = nvidia.collect(self.view, self.bus)
        return self._nvidia

    @property
    def ascend(self) -> ascend.AscendFacts:
        if self._ascend is None:
            self._ascend = ascend.collect(self.view, self.bus)
        return self._ascend

    @property
    def devices(self) -> list[Device]:
        return self.nvidia.devices + self.ascend.devices

    def distribution(self) -> str:
        """Name of the Linux distribution, such as ``Debian GNU/Linux 12 (bookworm)``; may be empty."""
        text = self.view.read("/etc/os-release")
        return key_values(text.value).get("PRETTY_NAME", "").strip("\"'") if text.is_present else ""

    def in_container(self) -> bool:
        view = self.view
        if any(view.exists(path).is_present for path in ("/.dockerenv", "/run/.containerenv")):
            return True
        return bool(view.env_text("container") or view.env_text("KUBERNETES_SERVICE_HOST"))

    def in_wsl(self) -> bool:
        text = self.view.read("/proc/version")
        return text.is_present and "microsoft" in text.value.lower()
