"""What a masked language model must predict depends on the shard only."""

import numpy as np
import pytest
import torch

from holdfast.data.dataset import generator_for
from holdfast.data.formats.text import Windows
from holdfast.tasks.language import IGNORE_INDEX, MASK, Masked


def masked(length=100, count=200):
    text = np.random.default_rng(0).integers(256, size=length * count + 1, dtype=np.uint8)
    plain = Windows(text.tobytes(), length)
    return plain, Masked(plain), np.arange(count)


@pytest.mark.parametrize(("length", "asked"), [(100, 15), (64, 10), (2, 1)])
def test_every_sample_has_the_same_number_of_masked_bytes(length, asked):
    _, data, indices = masked(length)
    _, y = data.batch(indices, generator_for("shard"))
    assert ((y != IGNORE_INDEX).sum(1) == asked).all()


def test_selected_bytes_are_masked_replaced_or_kept_and_others_unchanged():
    plain, data, indices = masked()
    text, _ = plain.batch(indices, generator_for("shard"))
    x, y = data.batch(indices, generator_for("shard"))
    asked = y != IGNORE_INDEX
    assert torch.equal(y[asked], text[asked])
    assert torch.equal(x[~asked], text[~asked])
    shares = [(x == MASK)[asked], (x == text)[asked]]
    hidden, kept = (float(share.double().mean()) for share in shares)
    assert hidden == pytest.approx(0.8, abs=0.03)
    assert kept == pytest.approx(0.1, abs=0.03)
    assert ((x >= 0) & (x <= MASK)).all()


def test_the_selection_depends_on_the_generator_only():
    _, data, indices = masked()
    first, again, other = (data.batch(indices, generator_for(key)) for key in ("a", "a", "b"))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])
