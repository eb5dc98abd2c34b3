"""Rounds: an order for the links of all pairs in which no host has two at a time."""

from __future__ import annotations


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Ordered pairs of the numbers below `count`, each once; in a round every number at most once.

    It is the circle method: one number stays, the others move on by a place each round.
    """
    places = list(range(count + count % 2))  # if odd: the pair of the last one rests
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = list(zip(places[:half], reversed(places[half:]), strict=True))
        met = [pair for pair in pairs if max(pair) < count]
        found += [met, [(second, first) for first, second in met]]
        places = [places[0], places[-1], *places[1:-1]]
    return found
