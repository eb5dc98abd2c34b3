"""Arguments of benchmarks that argparse does not know."""

from __future__ import annotations

import argparse


def counts(text: str) -> list[int]:
    """Numbers above 0, with commas, in their order and once each.

    Raises:
        ArgumentTypeError: It is something else.
    """
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers above 0, such as 1,2,4")
    return sorted(set(map(int, words)))
