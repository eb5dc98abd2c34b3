"""The digest of a few samples distinguishes data sets of equal name and length."""

import itertools
import threading

import numpy as np
import pytest
import torch

from holdfast.data.dataset import as_dataset
from holdfast.data.loading.digest import digest_of_samples


class Given:
    fingerprint = "given"

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def batch(self, indices, generator):
        return tuple(self.samples[int(index)] for index in indices)


VALUES = [
    torch.arange(3), torch.arange(3.0), torch.arange(3).reshape(3, 1), torch.arange(3).bfloat16(),
    torch.tensor(0), torch.ones(0), np.arange(3, dtype=np.int16), np.float32(1), 1, 1.0, True,
    "1", b"1", None, [1], [[1]], {"a": 1}, {"b": 1}, (1, 1),
]  # fmt: skip


def test_different_samples_have_different_digests_and_equal_ones_the_same():
    digests = [digest_of_samples(Given([value])) for value in VALUES]
    assert all(digests)
    assert len(set(digests)) == len(VALUES)
    assert digests == [digest_of_samples(Given([value])) for value in VALUES]


@pytest.mark.parametrize("place", [0, 2, 4])
def test_the_first_the_middle_and_the_last_count(place):
    samples = [0, 1, 2, 3, 4]
    other = [*samples[:place], 9, *samples[place + 1 :]]
    assert digest_of_samples(Given(samples)) != digest_of_samples(Given(other))


def test_the_digest_does_not_depend_on_strides():
    wide = torch.arange(12).reshape(3, 4)
    assert digest_of_samples(Given([wide.t()])) == digest_of_samples(Given([wide.t().clone()]))


def test_augmentation_from_the_seeded_generators_has_a_digest():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index + torch.randn(2)

    assert digest_of_samples(as_dataset(Noisy())) == digest_of_samples(as_dataset(Noisy())) != ""


def test_samples_that_cannot_be_collated_alone_are_compared_as_they_are():
    def pairs(rows):
        return torch.stack([rows[0] + rows[1]])

    one, other = ([torch.arange(3), each] for each in (None, torch.arange(4)))
    digests = [digest_of_samples(as_dataset(rows, pairs)) for rows in (one, other)]
    assert all(digests)
    assert digests[0] != digests[1]


def test_samples_that_cannot_be_compared_have_no_digest():
    class Counting(Given):
        calls = itertools.count()

        def batch(self, indices, generator):
            return (next(self.calls),)

    class Broken(Given):
        def batch(self, indices, generator):
            raise ValueError("no such file")

    for dataset in (Counting([1]), Broken([1]), Given([threading.Lock()])):
        assert digest_of_samples(dataset) == ""
