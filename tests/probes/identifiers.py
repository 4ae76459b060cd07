"""Puts random identifiers into a record, as a real host has them, and says which."""

from __future__ import annotations

import copy
import json
import re
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

_STAND_IN = re.compile(r"00000000-0000-0000-0000-[0-9a-f]{12}")


def _uuid(source: Random) -> str:
    return str(UUID(int=source.getrandbits(128), version=4))


# From one number each: what is drawn piece by piece takes minutes to shrink.
UUIDS = st.integers(0, 2**64).map(lambda seed: _uuid(Random(seed)))


class Identifiers:
    """What one host would be recognised by."""

    def __init__(self, uuids: list[str], mac: str, quad: str, user: str, machine: str, serial: str) -> None:
        self.uuids = uuids
        self.mac = mac
        self.quad = quad
        self.user = user
        self.machine = machine
        self.serial = serial

    @property
    def all(self) -> list[str]:
        return [*self.uuids, self.mac, self.quad, self.user, self.machine, self.serial]


def _identifiers(seed: int) -> Identifiers:
    source = Random(seed)
    words = ["".join(source.choices("bcdfghjklmnpqrstvwxz", k=source.randint(5, 9))) for _ in range(2)]
    quad = source.choice(["10.%d.%d.%d", "192.168.%d.%d", "172.16.%d.%d", "172.31.%d.%d"])
    return Identifiers(
        [_uuid(source) for _ in range(24)],
        ":".join("%02x" % part for part in (0xA4, *source.choices(range(256), k=5))),
        quad % tuple(source.choices(range(256), k=quad.count("%d"))),
        words[0],
        words[1],
        "".join(source.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=12)),
    )


IDENTIFIERS = st.integers(0, 2**64).map(_identifiers)


def with_identifiers(record: dict[str, Any], given: Identifiers) -> dict[str, Any]:
    """``record`` with a real UUID for each stand-in, a home, and tools and files that tell all they know."""
    text = json.dumps({key: value for key, value in record.items() if not key.endswith("_expected")})
    for stand_in, uuid in zip(sorted(set(_STAND_IN.findall(text))), given.uuids):
        text = text.replace(stand_in, uuid)
    named: dict[str, Any] = copy.deepcopy(json.loads(text))
    home = "/home/" + given.user
    named.setdefault("env", {}).update({"HOME": home, "LD_LIBRARY_PATH": home + "/lib:" + home + "/cuda/lib64"})
    named.setdefault("files", {})[home + "/notes"] = "%s@%s %s\n" % (given.user, given.machine, home)
    named["files"]["/etc/motd"] = "inet %s ether %s http://%s:x1@%s/\n" % (
        given.quad,
        given.mac,
        given.user,
        given.quad,
    )
    named["files"]["/sys/devices/board"] = "Serial Number : %s\nGPU Part | Serial | : %s\n" % (
        given.serial,
        given.serial,
    )
    named.setdefault("cmds", {})["ip addr"] = {"rc": 0, "out": "%s %s" % (given.mac.upper(), given.quad), "err": ""}
    return named
