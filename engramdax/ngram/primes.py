# SPDX-License-Identifier: Apache-2.0
"""The sizes of the hash heads: ascending primes, none taken twice."""

from __future__ import annotations


def _is_prime(number: int) -> bool:
    """Miller-Rabin; the first 12 primes as witnesses decide every number below 3.18e23 without error."""
    witnesses = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number < 2:
        return False
    for prime in witnesses:
        if number % prime == 0:
            return number == prime
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for witness in witnesses:
        power = pow(witness, (number - 1) >> twos, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def find_primes(layers: int, starts: tuple[int, ...], heads: int) -> tuple[tuple[int, ...], ...]:
    """Give a prime for each head, [layers][orders * heads], ascending from each order's start."""
    used: set[int] = set()
    # All primes from a start up to the last one found from it are used, so a search that begins there
    # again may go on where the last one ended.
    last = {start: start - 1 for start in starts}
    primes = []
    for _ in range(layers):
        sizes = []
        for start in starts:
            for _ in range(heads):
                candidate = last[start] + 1
                while candidate in used or not _is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                last[start] = candidate
                sizes.append(candidate)
        primes.append(tuple(sizes))
    return tuple(primes)
