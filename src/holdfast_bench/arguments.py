"""Arguments of benchmarks: a parser that shows defaults, and types that argparse does not know."""

from __future__ import annotations

import argparse


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """A parser for the module of a benchmark.

    Args:
        about: Its docstring.
    """

    class Shown(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
        """The docstring as it is, and defaults that are set."""

        def _get_help_string(self, action: argparse.Action) -> str | None:
            is_set = action.default not in (None, [])
            return super()._get_help_string(action) if is_set else action.help

    return argparse.ArgumentParser(description=about, formatter_class=Shown)


def count(text: str) -> int:
    """A number above 0.

    Raises:
        ArgumentTypeError: It is something else.
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Numbers above 0, with commas, in their order and once each.

    Raises:
        ArgumentTypeError: It is something else.
    """
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers above 0, such as 1,2,4")
    return sorted(set(map(int, words)))
