"""Permutation: a keyed permutation of `0..n-1`, computed in blocks and never stored.

A Feistel network permutes the numbers below 2^b for any round function. Cycle walking, until a
value below n appears, restricts it to `0..n-1` (Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002, methods 2 and 3). With 2^b < 2n this takes fewer than two tries on average.
The halves may differ by one bit; they swap in every round.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

BLOCK = 4096
"""Positions computed together, to amortize the cost of numpy's calls."""

ROUNDS = 8

Indices = npt.NDArray[np.int64]


class Permutation:
    """A bijection of `0..n-1`, chosen by a key.

    Args:
        n: Size of the domain, at least 1.
        key: Any bytes; equal keys give equal permutations.
    """

    def __init__(self, n: int, key: bytes) -> None:
        assert n >= 1, "a permutation needs at least one element"
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._left_bits = bits // 2
        self._right_bits = bits - bits // 2
        digest = hashlib.blake2b(key, digest_size=8 * ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")
        self._block: tuple[int, Indices] | None = None

    def take(self, start: int, stop: int) -> Indices:
        """The images of the positions `start..stop-1`, int64[stop - start]."""
        assert 0 <= start <= stop <= self.n, f"[{start}, {stop}) is outside 0..{self.n}"
        blocks = range(start // BLOCK, -(-stop // BLOCK))
        pieces = [self._images(b)[max(0, start - b * BLOCK) : stop - b * BLOCK] for b in blocks]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _images(self, block: int) -> Indices:
        known = self._block  # read once: another thread may be in this method, too
        if known is None or known[0] != block:
            positions = np.arange(block * BLOCK, min((block + 1) * BLOCK, self.n), dtype=np.uint64)
            self._block = known = (block, self._walk(positions))
        return known[1]

    def _walk(self, values: npt.NDArray[np.uint64]) -> Indices:
        values = self._feistel(values)
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            values[outside] = self._feistel(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64)

    def _feistel(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left_bits = self._left_bits
        right_bits = self._right_bits
        left = values >> np.uint64(right_bits)
        right = values & _mask(right_bits)
        for key in self._keys:
            left, right = right, (left ^ _mix(right ^ key)) & _mask(left_bits)
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014); wraps modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
