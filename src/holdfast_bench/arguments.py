"""Arguments of benchmarks: a parser that shows defaults, and options that several have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


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


def names(kind: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """A type of argument: names with commas, in their order.

    Args:
        kind: The noun for one of them.
        known: The names that there are.
    """

    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(
                f"no {kind} {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return text.split(",")

    return parse


def add_names(
    parser: argparse._ActionsContainer,
    option: str,
    known: Collection[str],
    about: str,
    default: str | None = None,
) -> None:
    """Add an option for some of the names that are known; by default all.

    Args:
        parser: Gets the option.
        option: Its name, the plural of what it names.
        known: The names that there are.
        about: Its help; the names are added to it.
        default: The names if the option is absent.
    """
    parser.add_argument(
        option,
        type=names(option.strip("-").removesuffix("s"), known),
        default=default or ",".join(known),
        metavar="NAME,…",
        help=f"{about}: {', '.join(known)}.",
    )


def add_rounds(parser: argparse.ArgumentParser, default: int) -> None:
    """Add the option for the number of measurements."""
    parser.add_argument("--rounds", type=count, default=default, help="Number of measurements.")
