"""Sizes of the Engram hash tables: distinct primes, one per layer, n-gram size and head.

Construction of the release: layers in the order of the configuration, n-gram sizes 2 to the largest, heads from 0;
every n-gram size searches anew from ``engram_vocab_size - 1`` for the next prime that no table has yet.
"""

from __future__ import annotations

from functools import cache

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # decide every number below 3.3e24 (Sorenson, Webster 2015)


def is_prime(number: int) -> bool:
    """Miller-Rabin with witnesses that leave no doubt below 2^64."""
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        power = pow(witness, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


@cache
def table_primes(layers: int, largest_ngram: int, heads: int, start: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Primes as [layer][n-gram size - 2][head]; ``start`` is ``engram_vocab_size``."""
    taken: set[int] = set()
    tables = []
    for _ in range(layers):
        sizes = []
        for _ in range(2, largest_ngram + 1):
            number, found = start - 1, []
            for _ in range(heads):
                number += 1
                while number in taken or not is_prime(number):
                    number += 1
                taken.add(number)
                found.append(number)
            sizes.append(tuple(found))
        tables.append(tuple(sizes))
    return tuple(tables)


def table_rows(layers: int, largest_ngram: int, heads: int, start: int) -> tuple[int, ...]:
    """Rows of each layer's table: the sum of its primes."""
    return tuple(sum(map(sum, table)) for table in table_primes(layers, largest_ngram, heads, start))
