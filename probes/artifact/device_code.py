"""Reads the NVIDIA architectures back out of a compiled module, so that nobody has to believe a build flag.

The ELF section ``.nv_fatbin`` holds fat binaries; each is a header (magic 0xBA55ED50) and entries, an entry being PTX
or a cubin, itself an ELF file. The entry header and the cubin's flags say ``100`` for sm_100, sm_100a and sm_100f
alike; only the note ``.note.nv.tkinfo`` keeps the ``-arch sm_100a`` that ptxas was called with. Cubins must be stored
uncompressed (nvcc -Xfatbin -compress-mode=none), which the build sees to.
"""

from __future__ import annotations

import re
import struct

MAGIC = 0xBA55ED50
KIND_PTX, KIND_CUBIN = 1, 2
_ARCH = rb"-arch sm_(\d+[af]?)"


class Malformed(ValueError):
    """The bytes are no ELF file, or their device code cannot be read."""


class DeviceCode:
    """``cubins``: architectures of machine code, such as ``100a``; ``ptx``: virtual ones, such as ``compute_100``."""

    __slots__ = ("cubins", "ptx")

    def __init__(self) -> None:
        self.cubins: set[str] = set()
        self.ptx: set[str] = set()


def read(data: bytes) -> DeviceCode:
    """Device code in the shared library ``data``. Raises :class:`Malformed`."""
    found = DeviceCode()
    try:
        for name, start, size in sections(data):
            if name == ".nv_fatbin":
                _walk(data[start : start + size], found)
    except (struct.error, IndexError) as error:
        raise Malformed("truncated: %s" % error) from None
    return found


def sections(data: bytes) -> list[tuple[str, int, int]]:
    """(name, offset, size) of every section of a little-endian 64-bit ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise Malformed("no 64-bit little-endian ELF file")
    table, entry_size, count, names_index = struct.unpack_from("<Q10xHHH", data, 40)
    if not table or not count:
        return []
    raw = [struct.unpack_from("<IIQQQQ", data, table + number * entry_size) for number in range(count)]
    names = raw[names_index]
    found = []
    for name_offset, kind, _, _, offset, size in raw:
        begin = names[4] + name_offset
        end = data.index(b"\0", begin)
        found.append((data[begin:end].decode("ascii", "replace"), offset, 0 if kind == 8 else size))  # 8: no bytes
    return found


def _walk(blob: bytes, found: DeviceCode) -> None:
    position = 0
    while position + 16 <= len(blob):
        magic, _, header, size = struct.unpack_from("<IHHQ", blob, position)
        if magic != MAGIC:
            position += 8  # padding between fat binaries
            continue
        end = position + header + size
        position += header
        while position + 64 <= end:
            position = _entry(blob, position, found)
        position = end


def _entry(blob: bytes, position: int, found: DeviceCode) -> int:
    kind, _, header, size = struct.unpack_from("<HHIQ", blob, position)
    arch = struct.unpack_from("<I", blob, position + 28)[0]
    if not header or header > 4096:
        raise Malformed("entry header of %d bytes" % header)
    body = blob[position + header : position + header + size]
    if kind == KIND_PTX:
        found.ptx.add("compute_%d" % arch)
    elif kind == KIND_CUBIN:
        found.cubins.add(_cubin_arch(body, arch))
    return int(position + header + size)


def _cubin_arch(body: bytes, arch: int) -> str:
    if body[:4] != b"\x7fELF":
        raise Malformed("a cubin of sm_%d is compressed; its exact architecture cannot be read" % arch)
    for name, start, size in sections(body):
        if name == ".note.nv.tkinfo":
            match = re.search(_ARCH, body[start : start + size])
            if match:
                return match.group(1).decode("ascii")
    raise Malformed("a cubin of sm_%d has no note that names its architecture" % arch)
