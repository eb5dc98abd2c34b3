"""Rounds: every way is run once a round, so that a slow minute of the machine hits all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from holdfast.errors import HoldfastError

T = TypeVar("T")


def in_rounds(
    ways: Mapping[str, Callable[[], T]], rounds: int, about: str, *, alternates: bool = False
) -> dict[str, list[T]]:
    """The results of each way, one a round.

    Args:
        ways: What is run, by name.
        rounds: How often.
        about: What is measured, for the lines on standard error.
        alternates: True if every second round runs the ways backwards.
    """
    results: dict[str, list[T]] = {way: [] for way in ways}
    for number in range(rounds):
        names = list(ways)
        for way in reversed(names) if alternates and number % 2 else names:
            print(f"{about}, round {number + 1}: {way}", file=sys.stderr)
            results[way].append(ways[way]())
    return results


def attempt(run: Callable[[], T], name: str) -> T | None:
    """The result of a run; None if it failed, which is printed."""
    try:
        return run()
    except HoldfastError as error:
        print(f"{name} failed: {error}", file=sys.stderr)
        return None
