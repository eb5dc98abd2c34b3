"""Synthetic data from a seed, for testing machines rather than models. Used only by request."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import torch

from holdfast.data.dataset import generator_for
from holdfast.data.images import Images, Samples, Splits
from holdfast.job.data import SyntheticImages

LETTERS: Final = b"adeinrt "

NEXT_LETTER_PROBABILITIES: Final = (0.8, 0.15, 0.05)
"""Probabilities of the letters that may follow two others."""


def synthetic_images(spec: SyntheticImages) -> Splits:
    """`size` training images and a quarter as many test images: a pattern per class, and noise."""
    shape = (spec.channels, spec.height, spec.height)
    patterns = torch.randn(spec.classes, *shape, generator=generator_for("patterns"))

    def draw(name: str, count: int) -> Samples:
        generator = generator_for(name)
        y = torch.randint(spec.classes, (count,), generator=generator)
        x = patterns[y] + 2 * torch.randn(count, *shape, generator=generator)
        return Samples.of(x.numpy(), y.numpy())

    return Splits(
        training=Images(draw("train", spec.size), mirror=spec.augment),
        test=Images(draw("test", max(1, spec.size // 4))),
        shape=shape,
        classes=spec.classes,
    )


def synthetic_text(size: int) -> bytes:
    """`size` letters of a Markov chain of order 2.

    Three letters, drawn once, may follow any two. A model with a context of two letters can reach
    0.88 bits per letter; one with less context cannot come close.
    """
    generator = generator_for("synthetic text")
    count = len(LETTERS)
    followers = torch.rand(count * count, count, generator=generator).argsort(1)[:, :3].tolist()
    steps = torch.tensor(NEXT_LETTER_PROBABILITIES).cumsum(0)[:-1].tolist()
    before = 0
    last = 0
    text = bytearray()
    for chance in torch.rand(size, generator=generator).tolist():
        before, last = last, followers[before * count + last][bisect_right(steps, chance)]
        text.append(LETTERS[last])
    return bytes(text)
