"""A batch says how many samples it holds, which is the weight of its shard."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

from holdfast.core.step.plan import WorkItem
from holdfast.data.dataset import stacked
from holdfast.data.loading.loaded import collated, load
from holdfast.data.loading.source import source_of
from holdfast.errors import JobError
from holdfast.job import load as job

ROWS = [(torch.full((3,), float(i)), i) for i in range(6)]
TEXTS = [torch.arange(2 + i) for i in range(6)]


def odd(row):
    return row is not None and row[1] % 2 == 1


def filtered(rows):
    return default_collate([row for row in rows if odd(row)])


def undamaged(rows):
    return [row for row in rows if row is not None]


def named(rows):
    x, y = filtered(rows)
    return {"x": x, "nested": {"y": y}, "count": torch.tensor(len(x)), "name": "a batch"}


def packed(rows):
    tokens = torch.cat(rows)
    return {"ids": tokens[None], "positions": tokens[None]}


def blocks(rows):
    tokens = torch.cat(rows)
    return tokens[: len(tokens) // 8 * 8].reshape(-1, 8)


def graph(rows):
    nodes = torch.cat(rows)
    return {"nodes": nodes, "edges": torch.zeros(2, 9), "graph": nodes}


def of_time(rows):
    return torch.stack([x for x, _ in rows], dim=1)


def detection(rows):
    return tuple(zip(*filter(odd, rows), strict=True))


@pytest.mark.parametrize(
    ("rows", "collate", "size"),
    [
        (ROWS, default_collate, 6),
        (ROWS, filtered, 3),
        (ROWS[:2], filtered, 1),
        (ROWS, named, 3),
        (ROWS, detection, 3),
        (ROWS, lambda rows: [row for row in rows if odd(row)], 6),  # nothing says that some lack
        ([*ROWS, None, None], undamaged, 6),
        ([*ROWS, None], lambda rows: ["graphs", *undamaged(rows)], 6),
        ([None] * 4, lambda rows: torch.ones(len(rows), 2), 4),
        (TEXTS, packed, 6),
        (TEXTS, blocks, 6),
        (TEXTS, graph, 6),
        (ROWS, of_time, 6),
        (ROWS, lambda rows: torch.ones(2 * len(rows), 3), 6),
        (ROWS, len, 6),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_samples_are_counted_in_the_batch(rows, collate, size):
    assert collated(rows, collate).size == size


def test_no_sample_is_left():
    assert collated(ROWS[::2], lambda rows: torch.ones(len([*filter(odd, rows)]), 3)) is None
    assert collated(ROWS[::2], lambda rows: None) is None
    assert collated([None, None], filtered) is None
    assert collated(ROWS[::2], filtered) is None
    assert collated(ROWS[::2], lambda rows: torch.stack([x for x, y in rows if y % 2])) is None


def broken(rows):
    return torch.stack([row[2] for row in rows])


def misspelled(rows):
    return torch.stak(rows)


@pytest.mark.parametrize(
    ("rows", "collate", "error"),
    [
        ([None, None], stacked, JobError),
        (ROWS, broken, IndexError),
        (ROWS, misspelled, AttributeError),
    ],
)
def test_an_error_of_a_collate_function_is_raised(rows, collate, error):
    with pytest.raises(error):
        collated(rows, collate)


def test_a_data_set_that_makes_batches_may_leave_samples_out():
    class Batches:
        fingerprint = "own"

        def __len__(self):
            return 6

        def batch(self, indices, generator):
            return torch.from_numpy(indices[indices % 3 > 0]), torch.rand(2, generator=generator)[0]

    loaded = load(Batches(), np.arange(6), torch.Generator())
    assert loaded.size == 4
    assert load(Batches(), np.array([0, 3]), torch.Generator()) is None


def test_an_error_of_a_data_set_is_raised():
    class Lost:
        fingerprint = "own"

        def __len__(self):
            return 6

        def batch(self, indices, generator):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        load(Lost(), np.arange(6), torch.Generator())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize("data", [ROWS, Stream()], ids=["indexed", "stream"])
def test_evaluations_and_streams_count_alike(data):
    source = source_of(data, filtered)
    sizes = [size for _, size, _ in source.batches(range(2), 2, 3, lambda: None)]
    assert sorted(sizes) == [1, 2]
    reader = source.reader(job.check({"batch": 6, "shards": 2}, "test"), 1, 0, lambda: None)
    items = [WorkItem.of_shard(0), WorkItem.of_shard(1)]
    loaded = [reader.read_now(0, item) for item in items]
    assert sum(each.size for each in loaded if each) == 3
    assert all(each.size == len(each.batch[0]) for each in loaded if each)
