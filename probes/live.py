"""``LiveView``: the host that this process runs on."""

from __future__ import annotations

import os
import sys

from deepinfer.probes import child
from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.view import CHILD_SECONDS, HostView, Result

READ_LIMIT = 1 << 20  # bytes; every file that the probe reads is far smaller
NVML_SECONDS = 20.0  # driver start-up on an 8-GPU host without a persistence daemon takes several seconds
_READER_WORDS = ["python", "-I", "-S", "-B"]
_GONE = (2, 20)  # ENOENT, ENOTDIR: the only errors that prove absence


def _failure(error: OSError, path: str) -> Fact:
    if error.errno in _GONE:
        return absent(path)
    return unknown("%s: %s" % (path, error.strerror or "cannot be read"), path)


class LiveView(HostView):
    """Answers from the running system."""

    def __init__(self) -> None:
        self._nvml_child: child.Running | None = None

    def warm(self) -> None:
        """Start the NVML reader if there is a driver, so that the driver wakes up while the probe loads itself."""
        if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl"):
            try:
                self._nvml_child = child.start(sys.executable, [*_READER_WORDS, _reader()])
            except OSError:
                self._nvml_child = None  # nvml() tries again and says why

    def close(self) -> None:
        if self._nvml_child is not None:  # started early and never asked
            self._nvml_child.stop()
            self._nvml_child = None

    def system(self) -> Fact:
        return present(os.uname().sysname, "uname")

    def machine(self) -> Fact:
        return present(os.uname().machine, "uname")

    def python(self) -> Fact:
        version = "%d.%d.%d" % sys.version_info[:3]
        include = "%s/include/python%d.%d%s" % ((sys.base_prefix, *sys.version_info[:2], sys.abiflags))
        return present(
            {
                "version": version,
                "implementation": sys.implementation.name,
                "headers": os.path.exists(include + "/Python.h"),
                "site_packages": _site_packages(),
            },
            "sys",
        )

    def read(self, path: str) -> Fact:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO or a device must not block the probe
        except OSError as error:
            return _failure(error, path)
        try:
            chunks = []
            size = 0
            while size < READ_LIMIT:
                chunk = os.read(fd, 65536)
                if not chunk:
                    break
                chunks.append(chunk)
                size += len(chunk)
        except OSError as error:
            return unknown("%s: %s" % (path, error.strerror), path)
        finally:
            os.close(fd)
        return present(b"".join(chunks).decode("utf-8", "replace"), path)

    def names(self, folder: str) -> Fact:
        try:
            return present(sorted(os.listdir(folder)), folder)
        except OSError as error:
            return _failure(error, folder)

    def link(self, path: str) -> Fact:
        try:
            return present(os.readlink(path), path)
        except OSError as error:
            return absent(path) if error.errno == 22 else _failure(error, path)  # EINVAL: there, but no link

    def exists(self, path: str) -> Fact:
        try:
            os.stat(path)
        except OSError as error:
            return _failure(error, path)
        return present(path, path)

    def real(self, path: str) -> Fact:
        fact = self.exists(path)
        return present(os.path.realpath(path), path) if fact.is_present else fact

    def env(self, name: str) -> Fact:
        value = os.environ.get(name)
        return absent("environment") if value is None else present(value, "environment")

    def env_names(self, prefix: str) -> list[str]:
        return sorted(name for name in os.environ if name.startswith(prefix))

    def run(self, argv: list[str], stdin: str = "", seconds: float = CHILD_SECONDS) -> Fact:
        found = self.which(argv[0])
        if not found.is_present:
            return found
        try:
            rc, out, err = child.run(found.value, argv, stdin.encode(), seconds)
        except child.Unanswered as silence:
            return unknown(str(silence), argv[0])
        except OSError as error:
            return unknown("cannot be started: %s" % error.strerror, argv[0])
        return present(Result(rc, out, err), " ".join(argv))

    def nvml(self) -> Fact:
        running, self._nvml_child = self._nvml_child, None
        if not sys.executable or not os.path.exists(_reader()):
            return unknown("no interpreter to ask NVML with", "nvml")
        try:
            running = running or child.start(sys.executable, [*_READER_WORDS, _reader()])
            return parse_reader(Result(*running.answer(NVML_SECONDS)))
        except child.Unanswered as silence:
            return unknown(str(silence), "nvml")
        except OSError as error:
            return unknown("the NVML reader cannot be started: %s" % error.strerror, "nvml")


def parse_reader(result: Result) -> Fact:
    """The document that nvml_reader.py printed, or why there is none."""
    import json

    if result.rc != 0:
        return unknown("the NVML reader ended with %d" % result.rc, "nvml")
    try:
        document = json.loads(result.out.strip().rpartition("\n")[2])  # a driver library may print before us
    except ValueError:
        return unknown("the NVML reader printed no JSON: %.80r" % result.out, "nvml")
    if not isinstance(document, dict):
        return unknown("the NVML reader printed no object", "nvml")
    if document.get("missing"):
        return absent("nvml")
    return present(document, "nvml")


def _reader() -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_reader.py")


def _site_packages() -> str:
    """Where wheels of this interpreter lie, without importing sysconfig (8 ms)."""
    tail = "python%d.%d/site-packages" % sys.version_info[:2]
    for path in sys.path:
        if path.endswith(tail):
            return path
    return "%s/lib/%s" % (sys.prefix, tail)
