"""``HostView``: the only door through which the probe sees a host. Live and recorded hosts answer alike.

Every answer is a :class:`~deepinfer.probes.fact.Fact`. A view never raises for what it finds on a host.
"""

from __future__ import annotations

import re

from deepinfer.probes.fact import Fact, absent, present, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
CHILD_SECONDS = 10.0  # nvidia-smi and npu-smi need seconds on big hosts; a driver that hangs would need forever


class Result:
    """What a command answered: exit code and decoded output, cut at 1 MiB each."""

    __slots__ = ("err", "out", "rc")

    def __init__(self, rc: int, out: str, err: str) -> None:
        self.rc = rc
        self.out = out
        self.err = err


class HostView:
    """The interface. Subclasses answer; the shared methods below are built on their answers."""

    def system(self) -> Fact:
        """Kernel name, such as ``Linux``."""
        raise NotImplementedError

    def machine(self) -> Fact:
        """``uname -m``, such as ``x86_64``."""
        raise NotImplementedError

    def python(self) -> Fact:
        """dict with ``version``, ``implementation``, ``headers`` (bool or None), ``site_packages``."""
        raise NotImplementedError

    def read(self, path: str) -> Fact:
        """Text of a file."""
        raise NotImplementedError

    def names(self, folder: str) -> Fact:
        """Sorted names in a folder."""
        raise NotImplementedError

    def link(self, path: str) -> Fact:
        """Target text of a symbolic link; absent if it is none."""
        raise NotImplementedError

    def exists(self, path: str) -> Fact:
        """Present if anything (links followed) lies at ``path``."""
        raise NotImplementedError

    def real(self, path: str) -> Fact:
        """The path with every link resolved; absent if nothing is there."""
        raise NotImplementedError

    def env(self, name: str) -> Fact:
        """One named environment variable."""
        raise NotImplementedError

    def env_names(self, prefix: str) -> list[str]:
        """Names of the environment variables that begin with ``prefix``."""
        raise NotImplementedError

    def run(self, argv: list[str], stdin: str = "", seconds: float = CHILD_SECONDS) -> Fact:
        """:class:`Result` of a bounded command; absent if the program is not there."""
        raise NotImplementedError

    def nvml(self) -> Fact:
        """Raw answers of NVML (see nvml_reader.py); absent if there is no such library."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing running behind."""

    # -- built on the above -------------------------------------------------------------------------------------------

    def env_text(self, name: str) -> str:
        """Value of a variable, or an empty string."""
        fact = self.env(name)
        return fact.value if fact.is_present else ""

    def search_path(self) -> list[str]:
        """Folders of ``PATH``; relative and empty ones are left out (they would mean the current folder)."""
        text = self.env_text("PATH") or DEFAULT_PATH
        return [folder for folder in text.split(":") if folder.startswith("/")]

    def which(self, name: str) -> Fact:
        """Path of a program: as given if it holds a slash, else the first on ``PATH``."""
        if "/" in name:
            fact = self.exists(name)
            return present(name, fact.source) if fact.is_present else fact
        doubt = ""
        for folder in self.search_path():
            path = folder.rstrip("/") + "/" + name
            fact = self.exists(path)
            if fact.is_present:
                return present(path, "PATH")
            if fact.is_unknown:
                doubt = doubt or "%s: %s" % (folder, fact.reason)
        return unknown(doubt, "PATH") if doubt else absent("PATH")

    def first(self, paths: list[str]) -> Fact:
        """The first path that exists."""
        doubt = ""
        for path in paths:
            fact = self.exists(path)
            if fact.is_present:
                return present(path, path)
            if fact.is_unknown:
                doubt = doubt or "%s: %s" % (path, fact.reason)
        return unknown(doubt) if doubt else absent(", ".join(paths[:3]))

    def lines(self, path: str, pattern: str) -> Fact:
        """The lines of a file in which ``pattern`` is found: all that a record keeps of a vendor's file."""
        fact = self.read(path)
        return present(_matching(fact.value, pattern), fact.source) if fact.is_present else fact

    def shown(self, path: str) -> str:
        """``path`` as reports print it: the home folder as ``~``, so that no user name leaves the host."""
        home = self.env_text("HOME").rstrip("/")
        if home and home != "/" and (path == home or path.startswith(home + "/")):
            return "~" + path[len(home) :]
        return path


def _matching(text: str, pattern: str) -> str:
    return "".join(line + "\n" for line in text.splitlines() if re.search(pattern, line))


def key_values(text: str, separator: str = "=") -> dict[str, str]:
    """``key<separator>value`` lines as a dict; later lines win, other lines are skipped."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found[key.strip()] = value.strip()
    return found


def text_of(fact: Fact) -> Any:
    """The value of a present fact, else an empty string: for parsers that treat both kinds of silence alike."""
    return fact.value if fact.is_present else ""
