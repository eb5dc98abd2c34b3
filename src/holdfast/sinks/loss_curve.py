"""Loss curve: draws the loss of a run that has ended.

Pillow draws it in a tenth of the time that matplotlib takes to be imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.rundir import json_lines

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

Point = tuple[float, float]

_WIDTH: Final = 840
_HEIGHT: Final = 480
_LEFT: Final = 80
_RIGHT: Final = 76
_TOP: Final = 44
_BOTTOM: Final = 56
_FINE: Final = 2
"""Lines are drawn this many times as large, so that they are smooth once they are scaled down."""
_FONT_SIZE: Final = 14
_INK: Final = "#333333"
_GRID: Final = "#dddddd"
_LOSS: Final = "#1f77b4"
_ACCURACY: Final = "#ff7f0e"
_MAX_ACCURACY: Final = 1.02
_MARGIN: Final = 0.05
"""Part of an axis that stays free above and below a curve."""
_TICKS: Final = 7
"""Most ticks of an axis."""


def draw(metrics: Path, picture: Path) -> None:
    """Draw the losses in `metrics` (`metrics.jsonl`), and the accuracy if there is one.

    A loss that has no logarithm is a gap.
    """
    entries = list(json_lines.read(metrics))
    losses = [(line["step"], line["loss"]) for line in entries if "loss" in line]
    accuracy = [
        (line["step"], line["evaluation"]["accuracy"])
        for line in entries
        if "accuracy" in line.get("evaluation", {})
    ]
    logarithms = [(step, _log(loss)) for step, loss in losses]
    steps = _Axis.around(step for step, _ in losses + accuracy)
    loss = _Axis.around(value for _, value in logarithms if value is not None)
    plots = [_Plot("training loss", _LOSS, 1.5, logarithms, loss)]
    if accuracy:
        plots.append(_Plot("test accuracy", _ACCURACY, 2, accuracy, _Axis(0, _MAX_ACCURACY)))
    image = _curves(steps, plots)
    _label(image, steps, plots)
    image.save(picture)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A range of values along one side of the picture."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float]) -> _Axis:
        """The range of some values, and a margin."""
        known = [*values] or [0.0]
        low = min(known)
        high = max(known)
        margin = _MARGIN * (high - low) or 0.5
        return cls(low - margin, high + margin)

    def place(self, value: float) -> float:
        """Place of a value: 0 at the begin of the axis, 1 at its end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values in the range."""
        return _round_values(self.low, self.high)

    def powers(self) -> list[float]:
        """Values in the range whose powers of 10 are round numbers."""
        first = math.floor(self.low)
        last = math.ceil(self.high)
        every = math.ceil((last - first) / _TICKS)
        for factors, apart in (((1, 2, 5), 1), ((1, 3), 1), ((1,), every)):
            exponents = range(first, last + 1, apart)
            each = [at + math.log10(factor) for at in exponents for factor in factors]
            values = [value for value in each if self.low <= value <= self.high]
            if 1 < len(values) <= _TICKS:
                return values
        return [_log(value) or 0.0 for value in _round_values(10**self.low, 10**self.high)]


@dataclass(frozen=True, slots=True)
class _Plot:
    """A curve, its color, its width in pixels, and its axis."""

    title: str
    color: str
    width: float
    values: Sequence[tuple[float, float | None]]
    axis: _Axis


def _log(loss: float | None) -> float | None:
    """The logarithm of a loss, to base 10; None if it has none."""
    return math.log10(loss) if loss is not None and 0 < loss < math.inf else None


def _round_values(low: float, high: float) -> list[float]:
    """At most `_TICKS` multiples of 1, 2 or 5 times a power of 10, from `low` to `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(power * each for each in (1, 2, 5, 10) if (high - low) / (power * each) < _TICKS)
    return [float(at * step) for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _at(x: float, y: float, scale: float = 1) -> Point:
    """The pixel at a place of the curves' field; (0, 0) is its lower left corner."""
    across = _LEFT + x * (_WIDTH - _LEFT - _RIGHT)
    down = _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)
    return across * scale, down * scale


def _curves(steps: _Axis, plots: Sequence[_Plot]) -> Image:
    """The picture without its words."""
    from PIL import Image, ImageDraw  # only the end of a run pays for the import

    image = Image.new("RGB", (_FINE * _WIDTH, _FINE * _HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    for at in map(steps.place, filter(float.is_integer, steps.ticks())):
        pen.line([_at(at, 0, _FINE), _at(at, 1, _FINE)], fill=_GRID, width=_FINE)
    for at in map(plots[0].axis.place, plots[0].axis.powers()):
        pen.line([_at(0, at, _FINE), _at(1, at, _FINE)], fill=_GRID, width=_FINE)
    for plot in plots:
        for curve in _unbroken(plot, steps):
            _draw_curve(pen, curve, plot)
    pen.rectangle([_at(0, 1, _FINE), _at(1, 0, _FINE)], outline=_INK, width=_FINE)
    return image.reduce(_FINE)


def _unbroken(plot: _Plot, steps: _Axis) -> Iterable[list[Point]]:
    """The parts of a curve between its gaps."""
    part: list[Point] = []
    for step, value in plot.values:
        if value is not None:
            part.append(_at(steps.place(step), plot.axis.place(value), _FINE))
        elif part:
            yield part
            part = []
    if part:
        yield part


def _draw_curve(pen: ImageDraw, curve: list[Point], plot: _Plot) -> None:
    """Draw a part of a curve; one value is a dot."""
    if len(curve) == 1:
        pen.circle(curve[0], _FINE * plot.width, fill=plot.color)
    pen.line(curve, fill=plot.color, width=round(_FINE * plot.width))


def _label(image: Image, steps: _Axis, plots: Sequence[_Plot]) -> None:
    """Draw the words of the picture."""
    from PIL import ImageDraw, ImageFont

    pen = ImageDraw.Draw(image)
    pen.font = ImageFont.load_default(_FONT_SIZE)
    for step in filter(float.is_integer, steps.ticks()):
        x, y = _at(steps.place(step), 0)
        pen.text((x, y + 8), f"{step:.0f}", _INK, anchor="mt")
    pen.text(((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12), "step", _INK, anchor="mb")
    for value in plots[0].axis.powers():
        x, y = _at(0, plots[0].axis.place(value))
        pen.text((x - 8, y), f"{10**value:.4g}", _INK, anchor="rm")
    for plot in plots[1:]:
        for value in plot.axis.ticks():
            x, y = _at(1, plot.axis.place(value))
            pen.text((x + 8, y), f"{value:.1f}", _INK, anchor="lm")
    _draw_sideways(image, "loss", 14)
    if plots[1:]:
        _draw_sideways(image, "accuracy", _WIDTH - 14)
    across = _WIDTH / 2 - 140 * len(plots) / 2
    for number, plot in enumerate(plots):
        left = across + 140 * number
        pen.line([left, _TOP / 2, left + 24, _TOP / 2], fill=plot.color, width=2)
        pen.text((left + 32, _TOP / 2), plot.title, _INK, anchor="lm")


def _draw_sideways(image: Image, text: str, x: int) -> None:
    """Draw the name of an upright axis, read from below, around the column `x`."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_FONT_SIZE)
    words = Image.new("RGB", (_HEIGHT, 2 * _FONT_SIZE), "white")
    middle = (_HEIGHT + _BOTTOM - _TOP) / 2  # of the field, from the left once it is turned
    ImageDraw.Draw(words).text((middle, _FONT_SIZE), text, _INK, font=font, anchor="mm")
    image.paste(words.transpose(Image.Transpose.ROTATE_90), (x - _FONT_SIZE, 0))
