"""Data sets, streams and DataLoaders are read in the run's own order, or refused by name."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from holdfast.core.step.plan import WorkItem
from holdfast.data.loading.source import source_of
from holdfast.errors import JobError
from holdfast.job import load

pytestmark = pytest.mark.usefixtures("no_thread_while_forking")

JOB = load.check({"batch": 4, "shards": 2, "workers": 2}, "test")
DATA = TensorDataset(torch.arange(10.0), torch.arange(10))
ITEMS = [WorkItem.of_shard(0), WorkItem.of_shard(1)]


class Counter(IterableDataset):
    def __init__(self, end=10, start=0):
        self.end, self.start = end, start

    def __iter__(self):
        for number in range(self.start, self.end):
            yield number + 0.5 * float(torch.rand(()) < 0)  # draws a random number


class Positioned(Counter):
    """Knows its own position."""

    def __iter__(self):
        for number in range(self.start, self.end):
            self.start = number + 1
            yield number

    def state_dict(self):
        return {"start": self.start}

    def load_state_dict(self, state):
        self.start = state["start"]


def reader_of(data, epochs=2, steps=0, collate=None, job=JOB):
    return source_of(data, collate).reader(job, epochs, steps, lambda: None)


def step_of(reader, step):
    """The samples of a step, by shard."""
    loaded = [reader.take(step, item, ITEMS) for item in ITEMS]
    batches = [each.batch if each else torch.empty(0) for each in loaded]
    return [(each[0] if isinstance(each, tuple) else each).tolist() for each in batches]


def all_steps(reader, first=0):
    steps = []
    while not reader.is_over(first + len(steps)):
        step = first + len(steps)
        steps.append((reader.epoch_of(step), step_of(reader, step)))
        reader.advance()
        steps[-1] += (reader.ends_epoch(step),)
    return steps


EPOCH = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], []]]


@pytest.mark.parametrize("stream", [Counter(), Positioned()])
def test_a_stream_is_read_once_per_epoch(stream):
    expected = [(epoch, step, at == 2) for epoch in (0, 1) for at, step in enumerate(EPOCH)]
    assert all_steps(reader_of(stream)) == expected


def test_a_number_of_steps_ends_a_run_instead_of_epochs():
    assert [step for _, step, _ in all_steps(reader_of(Counter(), 0, 4))] == [*EPOCH, EPOCH[0]]
    assert (
        len(all_steps(reader_of(DATA, 0, 4, lambda rows: torch.stack([x for x, _ in rows])))) == 4
    )
    assert reader_of(DATA, 0, 4).epochs == 2
    assert reader_of(DATA, 2, 4).total_steps == 4


@pytest.mark.parametrize("kind", [Counter, Positioned])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_a_stream_continues_where_it_was(kind, after):
    reader = reader_of(kind())
    for step in range(after):
        step_of(reader, step)
        reader.advance()
    state = reader.state_dict()
    again = reader_of(kind())
    again.load_state_dict(state)
    assert all_steps(again, after) == all_steps(reader, after)


def test_a_state_that_leads_elsewhere_is_not_used():
    class Wrong(Positioned):
        def load_state_dict(self, state):
            self.start = state["start"] + 1

    reader = reader_of(Wrong())
    step_of(reader, 0)
    reader.advance()
    again = reader_of(Wrong())
    again.load_state_dict(reader.state_dict())
    assert step_of(again, 1) == EPOCH[1]


def test_a_stream_that_has_changed_is_refused():
    reader = reader_of(Counter())
    reader.advance()
    changed = reader_of(Counter(start=1, end=11))
    changed.load_state_dict(reader.state_dict())
    with pytest.raises(JobError, match="Counter gives other samples in step 2"):
        step_of(changed, 1)


def test_an_empty_stream_is_refused():
    with pytest.raises(JobError, match="Counter gave no samples in epoch 0"):
        step_of(reader_of(Counter(end=0)), 0)


def test_a_stream_draws_the_same_random_numbers_and_leaves_those_of_the_model():
    class Noise(IterableDataset):
        def __iter__(self):
            yield from (float(torch.rand(())) + float(np.random.rand()) for _ in range(8))

    torch.manual_seed(5)
    first = torch.rand(3)
    torch.manual_seed(5)
    one = step_of(reader_of(Noise()), 0)
    torch.manual_seed(6)
    assert step_of(reader_of(Noise()), 0) == one
    torch.manual_seed(5)
    reader_of(Noise()).state_dict()
    assert torch.equal(torch.rand(3), first)


def test_a_loader_gives_its_data_its_collate_function_and_its_workers():
    loader = DataLoader(
        DATA, batch_size=4, shuffle=True, num_workers=2, collate_fn=lambda rows: {"n": len(rows)}
    )
    source = source_of(loader)
    assert source.reader(JOB, 1, 0, lambda: None)._settings.workers == 2
    batch = reader_of(DataLoader(DATA, 4, collate_fn=loader.collate_fn)).read_now(0, ITEMS[0])
    assert batch.batch == {"n": 2}
    assert [size for _, size, _ in source.batches(range(2), 2, 64, lambda: None)] == [4, 1, 4, 1]


@pytest.mark.parametrize("data", [DATA, Counter()], ids=["indexed", "stream"])
def test_a_short_last_batch_is_left_out_if_the_loader_says_so(data):
    loader = DataLoader(data, 4, drop_last=True)
    steps = all_steps(reader_of(loader, collate=None))
    assert len(steps) == 4
    assert [ends for _, _, ends in steps] == [False, True] * 2
    sizes = [size for _, size, _ in source_of(loader).batches(range(2), 2, 64, lambda: None)]
    assert sizes == [4, 4]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(DATA, 5), "batch_size=5, and the job has batch=4"),
        (DataLoader(DATA, batch_size=None), "batch_size=None, which a run cannot use"),
        (DataLoader(DATA, batch_sampler=[[0, 1]]), "its own batch_sampler"),
        (DataLoader(DATA, 4, worker_init_fn=print, num_workers=1), "worker_init_fn"),
        (DataLoader(TensorDataset(torch.zeros(3)), 4, drop_last=True), "remove drop_last"),
        (DataLoader(Counter(), 4, num_workers=1), "a stream is read by the worker itself"),
        (iter(range(5)), "can be read only once"),
        ((x for x in range(3)), "can be read only once"),
        (5, "int is not a data set"),
        ([], "list holds no samples"),
    ],
)
def test_what_a_run_cannot_read_is_refused_by_name(data, message):
    with pytest.raises(JobError, match=message):
        reader_of(data)


def test_a_batch_that_is_a_dictionary_has_no_x():
    from holdfast.worker.shard import Shard

    shard = Shard({"tokens": 1}, 1, 0, 0)
    with pytest.raises(JobError, match=r"this one is a dict, so use shard.batch"):
        _ = shard.x
