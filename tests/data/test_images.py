"""Labelled images: standardized, split, and identified by their content."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.data.images import Images, Samples, Scale, checked_labels, split
from holdfast.errors import JobError

pixels = arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 5)] * 4))


@given(pixels)
def test_the_scale_of_bytes_is_their_mean_and_deviation(x):
    scale = Scale.of(x, np.arange(len(x)))
    np.testing.assert_allclose(scale.mean, x.mean((0, 2, 3)))
    deviation = x.std((0, 2, 3))
    np.testing.assert_allclose(scale.std, np.where(deviation > 0, deviation, 1.0))


def test_the_scale_of_large_numbers_that_differ_little_is_exact():
    x = (2**24 + np.arange(1000) % 2 * 2).astype(np.float32).reshape(-1, 1, 1, 1)
    assert Scale.of(x, np.arange(1000)) == Scale((2**24 + 1.0,), (1.0,))


def test_the_scale_of_many_blocks_is_that_of_the_chosen_rows():
    x = np.random.default_rng(0).integers(256, size=(1000, 2, 1, 1), dtype=np.uint8)
    rows = np.arange(1, 1000, 3)
    np.testing.assert_allclose(Scale.of(x, rows).mean, x[rows].mean((0, 2, 3)))


@given(st.integers(2, 500))
def test_a_tenth_is_kept_for_the_test_and_nothing_is_lost(size):
    training, test = split(size, "somewhere")
    assert sorted([*training, *test]) == list(range(size))
    assert len(test) == max(1, size // 10)


@pytest.mark.parametrize("size", [0, 1])
def test_what_cannot_be_split_is_refused(size):
    with pytest.raises(JobError, match=f"somewhere: {size} samples cannot be split"):
        split(size, "somewhere")


def test_the_fingerprint_depends_on_content_labels_and_rows():
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64)
    whole = Images(Samples.of(x, y))
    assert Images(Samples.of(x.copy(), y.copy())).fingerprint == whole.fingerprint
    others = [
        Images(Samples.of(x + 1, y)),
        Images(Samples.of(x, y + 1)),
        Images(Samples.of(x, y), rows=np.array([0, 1])),
        Images(Samples.of(x, y), rows=np.array([0, 2])),
    ]
    assert len({whole.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_augmented_images_are_the_same_images_shifted_and_mirrored():
    x = np.random.default_rng(0).random((1, 1, 4, 4)).astype(np.float32)
    images = Images(Samples.of(x, np.zeros(1, np.int64)), shift=1, mirror=True)
    padded = np.pad(x[0, 0], 1)
    views = [
        view[:, ::turn]
        for down in range(3)
        for right in range(3)
        for view in [padded[down : down + 4, right : right + 4]]
        for turn in (1, -1)
    ]
    seen = set()
    for seed in range(200):
        found, _ = images.batch(np.array([0]), torch.Generator().manual_seed(seed))
        seen.add(next(i for i, view in enumerate(views) if np.array_equal(view, found[0, 0])))
    assert seen == set(range(18))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 3], "label 3 is outside 0..2"),
        ([-1, 0], "label -1 is outside 0..2"),
        ([0.0, 1.0], "must be one integer per sample, not float64"),
        (["cat", "dog"], "must be one integer per sample"),
        ([[0], [1]], r"of shape \[2, 1\]"),
        ([True, False], "not bool"),
    ],
)
def test_labels_that_are_not_classes_are_refused(values, message):
    with pytest.raises(JobError, match=f"somewhere: .*{message}"):
        checked_labels(np.array(values), 3, "somewhere")


def test_labels_of_any_integer_type_are_accepted():
    for kind in (np.uint8, np.int16, np.uint64):
        assert checked_labels(np.array([0, 2], kind), 3, "somewhere").dtype == np.int64
