"""Digests: which ranks are wrong when members found different digests of what must be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def most_common(digests: Mapping[int, int]) -> tuple[int, bool]:
    """The digest that most ranks found, and whether more than half of them did."""
    (digest, count), *_ = Counter(digests.values()).most_common()
    return digest, 2 * count > len(digests)


def wrong_ranks(digests: Mapping[int, int], before: Mapping[int, int] | None = None) -> list[int]:
    """The ranks that are wrong.

    The digest of more than half of the ranks is right. Without such a majority, a rank that
    contradicts its own earlier digest is wrong, if it is the only one.

    Args:
        digests: Digests that the ranks found, all at the same time.
        before: Digests that some ranks, not necessarily these, found earlier for the same thing.

    Returns:
        The wrong ranks in order; empty if none is wrong, or if it cannot be told which.
    """
    before = before or {}
    common, is_majority = most_common(digests)
    if is_majority:
        pairs = [*digests.items(), *before.items()]
        return sorted({rank for rank, digest in pairs if digest != common})
    contradicting = [rank for rank, digest in before.items() if digests.get(rank) != digest]
    return contradicting if len(contradicting) == 1 else []
