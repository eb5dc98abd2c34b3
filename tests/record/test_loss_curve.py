"""The picture of a run's losses."""

import json

import pytest
from PIL import Image

from holdfast.sinks.loss_curve import draw

BLUE, ORANGE = 2, 0
"""The channel that outweighs the others where a curve is drawn, also at its smooth edges."""


@pytest.fixture
def columns(tmp_path):
    """Draw some lines of metrics; returns the columns of pixels that have a color of a curve."""

    def drawn(entries, color):
        metrics, picture = tmp_path / "metrics.jsonl", tmp_path / "loss.png"
        metrics.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        draw(metrics, picture)
        with Image.open(picture) as image:
            field = image.crop((0, 44, image.width, image.height))  # without the legend
            return [x for x in range(field.width) if _has(color, field, x)]

    return drawn


def _has(color, image, x):
    pixels = (image.getpixel((x, y)) for y in range(image.height))
    return any(pixel[color] - pixel[2 - color] > 60 for pixel in pixels)


def entries(losses):
    return [{"step": number, "loss": loss} for number, loss in enumerate(losses, 1)]


def test_a_loss_that_is_no_number_is_a_gap(columns):
    whole = columns(entries([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]), BLUE)
    gap = columns(entries([5.0, 4.0, None, 2.0, 1.0, 0.5]), BLUE)
    assert (gap[0], gap[-1]) == (whole[0], whole[-1])
    assert len(gap) < 0.7 * len(whole)


@pytest.mark.parametrize("losses", [[None, None], [], [0.0, -1.0], [2.0], [2.0, 2.0]])
def test_few_losses_are_drawn_too(columns, losses):
    positive = [loss for loss in losses if loss is not None and loss > 0]
    assert bool(columns(entries(losses), BLUE)) == bool(positive)


@pytest.mark.parametrize("losses", [[1e-9, 1e9], [2.3, 2.3000001], [1e-300, 1e-299], [3e38, 1.0]])
def test_losses_of_any_size_fill_the_picture(columns, losses):
    drawn = columns(entries(losses), BLUE)
    assert drawn[-1] - drawn[0] > 500


def test_the_accuracy_is_drawn_where_there_is_one(columns):
    evaluated = [{"step": 1, "loss": 2.0}, {"step": 1, "evaluation": {"accuracy": 0.5}},
                 {"step": 2, "loss": 1.0, "evaluation": {"accuracy": 0.75}}]  # fmt: skip
    assert columns(evaluated, ORANGE)
    assert not columns(entries([2.0, 1.0]), ORANGE)
