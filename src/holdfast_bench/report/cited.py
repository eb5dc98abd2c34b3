"""Cited numbers: each number of a sentence with the result that it is from.

A sentence is a template whose numbers are all cited:

    say("It takes {seconds}.", seconds=number("recovery", 0.253, "{:.3g} s"))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FORMULAS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "value": lambda v: v[0],
    "ratio": lambda v: v[0] / v[1],
    "percent": lambda v: 100 * v[0],
    "rest_percent": lambda v: 100 * (1 - v[0] / v[1]),
    "gain_percent": lambda v: 100 * (v[0] / v[1] - 1),
    "per_thousand": lambda v: v[0] / 1000,
    "young": lambda v: (2 * v[0] / 1000 * v[1]) ** 0.5,
    "count": len,
}
"""How a number follows from measured ones."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a sentence.

    Attributes:
        source: The benchmark whose result has the measured numbers.
        inputs: The measured numbers.
        formula: A name in `FORMULAS`.
        text: How it is written.
    """

    source: str
    inputs: tuple[float, ...]
    formula: str
    text: str

    @property
    def value(self) -> float:
        """Value of the formula."""
        return float(FORMULAS[self.formula](self.inputs))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with cited numbers.

    Attributes:
        template: With a `{name}` for each number.
        numbers: By name.
    """

    template: str
    numbers: Mapping[str, Number]

    def __str__(self) -> str:
        return self.template.format_map({n: each.text for n, each in self.numbers.items()})

    @property
    def literal(self) -> str:
        """The text without its numbers."""
        return re.sub(r"\{\w+\}", "", self.template)


def number(source: str, *inputs: float, form: str = "{:g}", formula: str = "value") -> Number:
    """A number from measured ones.

    Args:
        source: The benchmark.
        inputs: What was measured.
        form: A format for it.
        formula: How it follows from `inputs`.
    """
    value = float(FORMULAS[formula](inputs))
    return Number(source, tuple(map(float, inputs)), formula, form.format(value))


def say(template: str, **numbers: Number) -> Sentence:
    """A sentence with these numbers."""
    return Sentence(template, numbers)


def seconds(source: str, value: float) -> Number:
    """A time, with three digits."""
    return number(source, value, form="{:.3g} s")
