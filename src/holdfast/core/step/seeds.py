"""Seeds: the random numbers of a run depend on their purpose, never on the worker that draws."""

from __future__ import annotations

import hashlib


def seed_for(*key: int | str) -> int:
    """A 63-bit seed that is a function of `key` alone, such as `(job.seed, step, shard)`."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
