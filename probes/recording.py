"""``RecordingView``: passes every question on to another view and keeps the raw answers as a record."""

from __future__ import annotations

from deepinfer.errors import DeepInferError
from deepinfer.probes.fact import Fact
from deepinfer.probes.record_form import SCHEMA
from deepinfer.probes.recorded import LINK
from deepinfer.probes.view import CHILD_SECONDS, HostView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HOPS = 40


class RecordUnwritable(DeepInferError):
    """The file given to ``--record`` cannot be written."""

    code = "DI204"


class RecordingView(HostView):
    """Answers like ``inner`` and fills ``record``."""

    def __init__(self, inner: HostView) -> None:
        self.inner = inner
        self.folders: dict[str, list[str]] = {}
        self.absent: set[str] = set()
        self.files: dict[str, str] = {}
        self.unread: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.cmds: dict[str, dict[str, Any]] = {}
        self.libs: dict[str, Any] = {}

    def record(self) -> dict[str, Any]:
        """The record of all that was asked so far."""
        nodes = sorted(path for path, held in self.files.items() if path.startswith("/dev/") and held == "<file>")
        return {
            "schema": SCHEMA,
            "system": self.inner.system().value,
            "machine": self.inner.machine().value,
            "python": self.inner.python().value,
            "env": dict(sorted(self.values.items())),
            "folders": dict(sorted(self.folders.items())),
            "files": {path: self.files[path] for path in sorted(self.files) if path not in nodes},
            "dev": nodes,
            "absent": sorted(self.absent),
            "unknown": dict(sorted(self.unread.items())),
            "cmds": dict(sorted(self.cmds.items())),
            "libs": self.libs,
        }

    def system(self) -> Fact:
        return self.inner.system()

    def machine(self) -> Fact:
        return self.inner.machine()

    def python(self) -> Fact:
        return self.inner.python()

    def _follow(self, path: str) -> str:
        """The path behind every link on the way, each link kept."""
        done, todo = "", [part for part in path.split("/") if part]
        hops = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            if part == ".":
                continue
            step = done + "/" + part
            target = self.inner.link(step)
            if target.is_present and hops < _HOPS:
                hops += 1
                self.files[step] = LINK + target.value
                todo = [word for word in target.value.split("/") if word] + todo
                done = "" if target.value.startswith("/") else done
            else:
                done = step
        return done or "/"

    def _keep(self, path: str, fact: Fact, held: str) -> Fact:
        where = self._follow(path)
        if fact.is_present:
            if held not in ("<file>",) or where not in self.files:
                self.files[where] = held
        elif fact.is_absent:
            self.absent.add(where)
        else:
            self.unread[where] = fact.reason
        return fact

    def read(self, path: str) -> Fact:
        fact = self.inner.read(path)
        return self._keep(path, fact, fact.value if fact.is_present else "")

    def lines(self, path: str, pattern: str) -> Fact:
        fact = self.inner.lines(path, pattern)
        return self._keep(path, fact, fact.value if fact.is_present else "")

    def exists(self, path: str) -> Fact:
        fact = self.inner.exists(path)
        return self._keep(path, fact, "<file>")

    def real(self, path: str) -> Fact:
        fact = self.inner.real(path)
        return self._keep(path, fact, "<file>")

    def link(self, path: str) -> Fact:
        fact = self.inner.link(path)
        if fact.is_present:
            self._follow(path)
        elif fact.is_unknown:
            self.unread[path] = fact.reason
        elif self.inner.exists(path).is_absent:
            self.absent.add(path)
        return fact

    def names(self, folder: str) -> Fact:
        fact = self.inner.names(folder)
        where = self._follow(folder)
        if fact.is_present:
            self.folders[where] = fact.value
        elif fact.is_absent:
            self.absent.add(where)
        else:
            self.unread[where] = fact.reason
        return fact

    def env(self, name: str) -> Fact:
        fact = self.inner.env(name)
        if fact.is_present:
            self.values[name] = fact.value
        return fact

    def env_names(self, prefix: str) -> list[str]:
        names = self.inner.env_names(prefix)
        for name in names:
            self.env(name)
        return names

    def run(self, argv: list[str], stdin: str = "", seconds: float = CHILD_SECONDS) -> Fact:
        fact = self.inner.run(argv, stdin, seconds)
        self.which(argv[0])  # where it was found belongs to the record
        if fact.is_present:
            answer = {"rc": fact.value.rc, "out": fact.value.out, "err": fact.value.err}
        elif fact.is_absent:
            answer = {"rc": 127, "out": "", "err": "%s: command not found" % argv[0]}
        else:
            answer = {"rc": None, "out": "", "err": fact.reason}
        self.cmds[" ".join(argv)] = answer
        return fact

    def close(self) -> None:
        self.inner.close()

    def nvml(self) -> Fact:
        fact = self.inner.nvml()
        if fact.is_present:
            self.libs["nvml"] = fact.value
        else:
            self.libs["nvml"] = {"missing": True} if fact.is_absent else {"silent": fact.reason}
        return fact


def write_record(record: dict[str, Any], path: str) -> None:
    """Write ``record`` to the file ``path``: whole or not at all."""
    import json
    import os

    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    partial = "%s.%d.part" % (path, os.getpid())
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe, such as /dev/stdout
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as error:
        try:
            os.unlink(partial)
        except OSError:
            partial = ""  # never came to be
        raise RecordUnwritable(
            "%s cannot be written: %s" % (path, error.strerror), fix="name a file in a folder that you may write to"
        ) from None


def complete(view: RecordingView, index: dict[str, Any]) -> None:
    """Ask what a verdict for any target may need, so that the record can be judged for each of them."""
    from deepinfer.probes.facts.host import HostFacts
    from deepinfer.probes.judge import BUILT
    from deepinfer.probes.toolchain import choose
    from deepinfer.probes.wish import Wish

    facts = HostFacts(view, Wish())
    facts.distribution()
    facts.in_container()
    facts.in_wsl()
    for entry in index["entries"]:
        if entry["status"] in (*BUILT, "reference"):
            choose(facts, entry)
