"""Takes identifiers out of a record and keeps every fact that a verdict needs.

Device UUIDs, serial numbers, die ids, MAC and IP addresses, host and user names, home paths and credentials in URLs
are replaced; the same identifier always by the same stand-in, so that what refers to a device still does. Redacting
a redacted record changes nothing.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Match

_UUID = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_STAND_IN_UUID = re.compile(r"00000000-0000-0000-0000-[0-9a-f]{12}")
_UUID_PREFIX = re.compile(r"\b(GPU|MIG)-([0-9a-fA-F][0-9a-fA-F-]*)\b")
_SERIAL = re.compile(
    r"(?im)^([ \t|]*[^:=\n]*?(?:serial|die id|guid|asset|sdid)[^:=\n]*[:=][ \t]*)(?!N/A|\[N/A\])(\S.*)$"
)
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}(?![\w:.])|\bfe80::[0-9a-fA-F:]+")
# A dotted quad may as well be a version; only private ranges and quads behind // or @ are surely addresses.
_IPV4 = re.compile(
    r"(?<![\w.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\w.])|(?<=//)\d{1,3}(?:\.\d{1,3}){3}"
)
_CREDENTIALS = re.compile(r"(?<=//)[^/\s@]+@")
_USER_AT_HOST = re.compile(r"(?<![\w.-])[A-Za-z0-9_][\w.+-]*@[\w.-]*")
_HOME = re.compile(r"(?<![\w.-])/(?:home|Users)/([^/\s:\"']+)")
_BUILDERS = ("dvs-builder@host", "user@host")


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
        self.home = home.rstrip("/")
        self.names = [re.compile(r"(?<![\w.-])%s(?![\w-])" % re.escape(name)) for name in names if len(name) > 3]
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
        if self.home and self.home not in ("/", "/root") and not self.home.startswith(("/home/", "/Users/")):
            text = re.sub(re.escape(self.home) + r"(?![\w.-])", "/home/user", text)
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
        whole = [stand_in for known, stand_in in self.uuids.known.items() if known.startswith(short.lower())]
        return "%s-%s" % (kind, whole[0]) if len(whole) == 1 else "%s-%s" % (kind, "0" * len(short))


def redact(record: dict[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """A redacted copy of ``record``. ``names``: host and user names of the machine that must not stay."""
    redactor = _Redactor(record.get("env", {}).get("HOME", ""), names or [])
    for text in _strings(record):
        redactor.learn(text)
    for text in _strings(record):  # whole UUIDs first, wherever they stand: short ones refer to them
        for match in _UUID.finditer(text):
            redactor.uuids.of(match.group().lower())
    result = _map(record, redactor.apply)
    if not isinstance(result, dict):
        raise TypeError("a record is a dict")
    kernel = result.get("files", {}).get("/proc/version")
    if isinstance(kernel, str):
        result["files"]["/proc/version"] = _plain_kernel(kernel)
    return result


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
