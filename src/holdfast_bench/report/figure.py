"""Figure: a question, its answer from the data, and a drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import Sentence
from holdfast_bench.report.theme import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the report.

    Attributes:
        name: Its name in files and links.
        question: Its title.
        answer: The answer, from the data.
        caption: What could mislead.
        source: The benchmark whose result it shows.
        command: What measures that.
        draw: Draws it with the colors of a theme.
        rounds: How often it was measured, as a caption says it.
    """

    name: str
    question: str
    answer: Sentence
    caption: str
    source: str
    command: str
    draw: Callable[[Tokens], Canvas]
    rounds: str = ""
