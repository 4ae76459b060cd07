"""Philox4x32-10 gives the published words."""

from __future__ import annotations

import pytest
from native import native

_native = native()
ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_words_are_the_published_ones(counter, key, words) -> None:
    assert _native.philox4x32_10(counter, key) == words


def test_words_of_more_than_32_bits_are_refused() -> None:
    with pytest.raises(TypeError):
        _native.philox4x32_10((1 << 32, 0, 0, 0), (0, 0))
