"""Takes identifiers out of a record and keeps every fact that a verdict needs.

Device UUIDs, serial numbers, die ids, MAC and IP addresses, host and user names, home paths and credentials in URLs
are replaced; the same identifier always by the same stand-in, so that what refers to a device still does. Redacting
a redacted record changes nothing.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Match, Pattern

_UUID = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_STAND_IN_UUID = re.compile(r"00000000-0000-0000-0000-[0-9a-f]{12}")
_DEVICE_UUID = re.compile(r"\b(GPU|MIG)-(%s)" % _UUID.pattern)
_UUID_PREFIX = re.compile(r"\b(GPU|MIG)-([0-9a-fA-F][0-9a-fA-F-]*)\b")
_SERIAL = re.compile(
    r"(?im)^([ \t|]*[^:=\n]*?(?:serial|die id|guid|asset|sdid)[^:=\n]*[:=][ \t]*)(?!N/A|\[N/A\])(\S.*)$"
)
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}(?![\w:.])|\bfe80::[0-9a-fA-F:]+")
# A dotted quad may as well be a version; only private ranges and quads behind // are surely addresses. Three parts
# never are one: 10.3.0 is a compiler.
_IPV4 = re.compile(
    r"(?<![\w.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\w.])"
    r"|(?<=//)\d{1,3}(?:\.\d{1,3}){3}"
)
_CREDENTIALS = re.compile(r"(?<=//)[^/\s@]+@")
_USER_AT_HOST = re.compile(r"(?<![\w.-])[A-Za-z0-9_][\w.+-]*@[\w.-]*")
_HOME = re.compile(r"(?<![\w.-])/(?:home|Users)/([^/\s:\"']+)")
# Names of users and hosts that identify nobody and that are words of every record.
_PLAIN_NAMES = ("admin", "ascend", "cuda", "docker", "linux", "local", "nvidia", "python", "user", "host")
_BUILDERS = ("dvs-builder@host", "user@host")
# A home in one of these belongs to a service: it names nobody, and facts of the host lie there.
_SYSTEM_FOLDERS = ("/bin", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/usr", "/root")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_STAND_INS = re.compile(r"\b(?:192\.0\.2\.\d+|2001:db8::1)\b")


class _StandIns:
    """Gives each identifier of one kind a numbered stand-in, and leaves what already is one alone."""

    def __init__(self, form: str, taken: Callable[[str], bool]) -> None:
        self.form = form
        self.taken = taken
        self.known: dict[str, str] = {}
        self.used: set[str] = set()

    def reserve(self, text: str) -> None:
        if self.taken(text):
            self.used.add(text)

    def of(self, text: str) -> str:
        if self.taken(text):
            return text
        if text not in self.known:
            number = len(self.known) + 1
            while self.form % number in self.used:
                number += 1
            self.known[text] = self.form % number
            self.used.add(self.known[text])
        return self.known[text]


class _Redactor:
    def __init__(self, home: str, names: list[str]) -> None:
        home = home.rstrip("/")
        odd = home.startswith("/") and not home.startswith(("/home/", "/Users/", *_SYSTEM_FOLDERS))
        self.home = _folder(home) if odd else None
        self.names = [re.compile(r"(?<![\w.-])%s(?![\w-])" % re.escape(name)) for name in names if len(name) > 3]
        self.devices: dict[str, set[str]] = {"GPU": set(), "MIG": set()}  # the UUIDs that a short one may stand for
        self.uuids = _StandIns("00000000-0000-0000-0000-%012x", lambda text: bool(_STAND_IN_UUID.fullmatch(text)))
        self.macs = _StandIns("02:00:00:00:00:%02x", lambda text: text.startswith("02:00:00:00:00:"))
        self.quads = _StandIns("192.0.2.%d", lambda text: text.startswith("192.0.2."))
        self.users = _StandIns("user%d", lambda text: bool(re.fullmatch(r"user\d*", text)))

    def learn(self, text: str) -> None:
        """Note the stand-ins that are already there, so that none is given twice."""
        for kind, pattern in ((self.uuids, _UUID), (self.macs, _MAC), (self.quads, re.compile(r"192\.0\.2\.\d+"))):
            for match in pattern.finditer(text):
                kind.reserve(match.group().lower())
        for match in _HOME.finditer(text):
            self.users.reserve(match.group(1))

    def apply(self, text: str) -> str:
        if self.home:
            text = self.home.sub("/home/user", text)
        text = _UUID.sub(lambda match: self.uuids.of(match.group().lower()), text)
        text = _UUID_PREFIX.sub(self._prefix, text)
        text = _CREDENTIALS.sub("", text)
        text = _MAC.sub(lambda match: self.macs.of(match.group().lower()), text)
        text = _IPV6.sub("2001:db8::1", text)
        text = _IPV4.sub(lambda match: self.quads.of(match.group()), text)
        text = _USER_AT_HOST.sub(lambda match: match.group() if match.group() in _BUILDERS else "user@host", text)
        text = _HOME.sub(
            lambda match: match.group()[: match.start(1) - match.start()] + self.users.of(match.group(1)), text
        )
        for name in self.names:
            text = name.sub("host", text)
        return _SERIAL.sub(lambda match: match.group(1) + "REDACTED", text)

    def _prefix(self, match: Match[str]) -> str:
        """A shortened UUID, as CUDA_VISIBLE_DEVICES allows, becomes the stand-in of the one that it stands for."""
        kind, short = match.groups()
        if _UUID.fullmatch(short):
            return match.group()
        whole = [self.uuids.of(known) for known in self.devices[kind] if known.startswith(short.lower())]
        if len(whole) == 1:
            return "%s-%s" % (kind, whole[0])
        # what stood for none must stand for none of the stand-ins, what stood for several for several
        return "%s-%s" % (kind, "00000000-0000-0000-0000-"[: len(short)] if whole else "f" * len(short))


def redact(record: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """A redacted copy of ``record``. ``names``: host and user names of the machine that must not stay."""
    words = set(re.findall(r"\w+", str(record.get("files", {}).get("/etc/os-release", "")).lower())) | set(_PLAIN_NAMES)
    names = [name for name in names or [] if name.lower() not in words]
    redactor = _Redactor(record.get("env", {}).get("HOME", ""), names)
    for text in _strings(record):
        redactor.learn(text)
    for text in _strings(record):  # whole UUIDs first, wherever they stand: short ones refer to them
        for match in _UUID.finditer(text):
            redactor.uuids.of(match.group().lower())
    for text in _strings({key: value for key, value in record.items() if key != "env"}):
        for kind, known in _DEVICE_UUID.findall(text):
            redactor.devices[kind].add(known.lower())
    result = _map(record, redactor.apply)
    if not isinstance(result, dict):
        raise TypeError("a record is a dict")
    kernel = result.get("files", {}).get("/proc/version")
    if isinstance(kernel, str):
        result["files"]["/proc/version"] = _plain_kernel(kernel)
    return result


def masked(text: str, home: str = "") -> str:
    """``text`` as a report may print it: each identifier replaced by the word for its kind, ``home`` by ``~``.

    Identifiers and their stand-ins give the same words, so a record and its redacted copy give the same report. What
    would move a cursor or end a line becomes a space: a record of somebody else's host must not drive this terminal.
    """
    return _CONTROL.sub(" ", _in_words(text, home))


def _in_words(text: str, home: str = "") -> str:
    home = home.rstrip("/")
    if home.startswith("/"):
        text = _folder(home).sub("~", text)
    text = _UUID_PREFIX.sub(r"\1-UUID", _UUID.sub("UUID", text))
    text = _MAC.sub("MAC", _CREDENTIALS.sub("", text))
    for pattern in (_STAND_INS, _IPV6, _IPV4):
        text = pattern.sub("ADDRESS", text)
    text = _USER_AT_HOST.sub("user@host", text)
    return _HOME.sub(lambda match: match.group()[: match.start(1) - match.start()] + "user", text)


def excerpt(text: str, size: int = 200) -> str:
    """The beginning of what a tool printed, on one line. Identifiers go first: a cut would leave half of one."""
    plain = _SERIAL.sub(lambda match: match.group(1) + "REDACTED", _in_words(text[: 16 * size]))
    return " ".join(_CONTROL.sub(" ", plain).split())[:size]


def _folder(path: str) -> Pattern[str]:
    """Matches ``path`` where it is a whole folder."""
    return re.compile(r"(?<![\w.~-])%s(?![\w.-])" % re.escape(path))


def _plain_kernel(line: str) -> str:
    """``Linux version 6.6.87.2-microsoft ...``: builders, hosts and local names dropped, the sign of WSL kept."""
    match = re.match(r"Linux version \d+(?:\.\d+)*", line)
    sign = "-microsoft" if "microsoft" in line.lower() else ""
    return (match.group() if match else "Linux version") + sign + "\n"


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key in sorted(value) for text in [key, *_strings(value[key])]]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map(value[key], change) for key in sorted(value)}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return value
