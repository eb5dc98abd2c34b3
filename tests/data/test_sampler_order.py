"""The order that a DataLoader asks for: that of its data set, or what its sampler draws."""

import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from holdfast.core.step.plan import WorkItem
from holdfast.data.loading.sampler_order import SamplerOrder
from holdfast.data.loading.source import source_of
from holdfast.errors import JobError
from holdfast.job import load

pytestmark = pytest.mark.usefixtures("no_thread_while_forking")

JOB = load.check({"batch": 4, "shards": 2, "workers": 2}, "test")
DATA = TensorDataset(torch.arange(10))
ITEMS = [WorkItem.of_shard(0), WorkItem.of_shard(1)]


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def reader_of(loader, epochs=3):
    return source_of(loader).reader(JOB, epochs, 0, lambda: None)


def epochs_of(reader, first=0):
    """The samples of each epoch from a step on."""
    epochs = {}
    for step in range(first, reader.total_steps):
        loaded = [reader.take(step, item, ITEMS) for item in ITEMS]
        found = [int(x) for each in loaded if each for x in each.batch[0]]
        epochs.setdefault(reader.epoch_of(step), []).extend(found)
    return [epochs[number] for number in sorted(epochs)]


def as_pytorch_draws(loader, epochs=3):
    return [[int(x) for batch in loader for x in batch[0]] for _ in range(epochs)]


class Own(Sampler):
    """Draws from generators of its own, and from all global ones."""

    def __init__(self, size=10):
        self.size = size
        self.numpys = np.random.default_rng(7)
        self.pythons = random.Random(7)

    def __len__(self):
        return self.size

    def __iter__(self):
        yield int(self.numpys.integers(10))
        yield self.pythons.randrange(10)
        yield random.randrange(10)
        yield np.random.randint(10)
        yield from torch.randint(10, (self.size - 4,))


class Rotated:
    """Has an epoch, and is no Sampler."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(np.roll(np.arange(10), -self.epoch))


def test_a_loader_that_does_not_shuffle_gives_the_order_of_its_data():
    assert epochs_of(reader_of(DataLoader(DATA, 4))) == [[*range(10)]] * 3
    short = reader_of(DataLoader(DATA, 4, drop_last=True))
    assert epochs_of(short) == [[*range(8)]] * 3
    assert short.facts["sampler"] == "shuffle=False"


def test_shuffling_and_plain_data_have_the_order_of_the_run():
    shuffled = reader_of(DataLoader(DATA, 4, shuffle=True))
    assert epochs_of(shuffled) == epochs_of(reader_of(DATA))
    assert shuffled.facts == reader_of(DATA).facts
    assert sorted(epochs_of(shuffled)[1]) == [*range(10)] != epochs_of(shuffled)[1]


LOADERS = {
    "subset": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler([1, 2, 5, 7, 8], seeded())),
    "weighted": lambda: DataLoader(
        DATA, 4, sampler=WeightedRandomSampler([*range(10)], 7, generator=seeded())
    ),
    "replaced": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, True, 9, seeded())),
    "shuffled": lambda: DataLoader(DATA, 4, shuffle=True, generator=seeded()),
    "dropped": lambda: DataLoader(DATA, 4, shuffle=True, generator=seeded(), drop_last=True),
    "batches": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(SubsetRandomSampler([*range(9)], seeded()), 4, True)
    ),
    "list": lambda: DataLoader(DATA, 4, sampler=[3, -1, 0, 3]),
    "shorter": lambda: DataLoader(DATA, 4, sampler=SequentialSampler(range(6))),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_order_is_the_one_that_pytorch_draws(name):
    found = epochs_of(reader_of(LOADERS[name]()))
    drawn = as_pytorch_draws(LOADERS[name]())
    assert found == [[index % 10 for index in epoch] for epoch in drawn]


@pytest.mark.parametrize(
    "make",
    [lambda: WeightedRandomSampler([1.0] * 10, 10), Own, Rotated],
    ids=["weighted", "own", "rotated"],
)
def test_the_order_of_an_epoch_is_the_same_in_every_worker(make):
    torch.manual_seed(1)
    whole = epochs_of(reader_of(DataLoader(DATA, 4, sampler=make())))
    torch.manual_seed(2)
    later = epochs_of(reader_of(DataLoader(DATA, 4, sampler=make())), first=6)
    assert later == whole[2:]
    assert len({tuple(epoch) for epoch in whole}) == 3


def test_drawing_an_order_leaves_the_random_numbers_of_the_model():
    loader = DataLoader(DATA, sampler=Own(), generator=seeded())
    order = SamplerOrder(loader, 0, lambda: None)
    torch.manual_seed(5)
    first = torch.rand(3)
    torch.manual_seed(5)
    order.epoch(1)
    assert torch.equal(torch.rand(3), first)


def test_an_epoch_that_was_forgotten_is_drawn_again_alike():
    order = SamplerOrder(DataLoader(DATA, sampler=Own(), generator=seeded()), 0, lambda: None)
    epochs = [order.epoch(number).tolist() for number in range(4)]
    digests = [order.begin(number) for number in (3, 1)]
    assert [order.epoch(number).tolist() for number in (1, 2, 3)] == epochs[1:]
    assert [order.begin(number) for number in (3, 1, 3)] == [*digests, digests[0]]
    assert order.epoch(3).tolist() == epochs[3]


@pytest.mark.parametrize("sets", [True, False])
def test_a_sampler_that_is_changed_in_the_loop_is_refused(sets):
    sampler = WeightedRandomSampler([1.0] * 10, 10)
    reader = reader_of(DataLoader(DATA, 4, sampler=sampler))
    assert reader.check(2, {}).keys() == {"samples", "epoch_order"}
    if sets:
        sampler.weights = torch.ones(10)
    else:
        sampler.weights[3] = 0
    with pytest.raises(JobError, match="WeightedRandomSampler was changed after"):
        reader.check(3, {})


def test_a_sampler_whose_epoch_user_code_sets_is_not_changed():
    sampler = Rotated()
    reader = reader_of(DataLoader(DATA, 4, sampler=sampler))
    reader.check(2, {})
    sampler.set_epoch(1)
    reader.check(3, {})


def test_an_epoch_has_as_many_samples_as_the_sampler():
    reader = reader_of(DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 10, 23)))
    assert reader.total_steps == 18
    assert [len(epoch) for epoch in epochs_of(reader)] == [23] * 3


def test_reading_ahead_in_processes_keeps_the_order():
    def make(workers):
        sampler = RandomSampler(DATA, True, 6, seeded())
        return DataLoader(DATA, 4, sampler=sampler, num_workers=workers)

    ahead = reader_of(make(2))
    assert epochs_of(ahead) == epochs_of(reader_of(make(0)))
    ahead.close()


def test_evaluations_measure_what_the_sampler_names_each_time_alike():
    sampler = WeightedRandomSampler([1.0, *[0.0] * 8, 1.0], 6, generator=seeded())
    source = source_of(DataLoader(DATA, 2, sampler=sampler))
    first, second = (
        [int(x) for _, _, batch in source.batches(range(3), 3, 64, lambda: None) for x in batch[0]]
        for _ in range(2)
    )
    assert first == second
    assert len(first) == 6
    assert set(first) <= {0, 9}
    parts = [
        [int(x) for _, _, batch in source.batches(rows, 3, 64, lambda: None) for x in batch[0]]
        for rows in (range(1), range(1, 3))
    ]
    assert parts[0] + parts[1] == first


class Endless:
    def __iter__(self):
        return iter(int, 1)


class Locked(Own):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Short(Own):
    def __iter__(self):
        return iter([1, 2, 3])


class Named(Own):
    def __iter__(self):
        return iter("abcdefghij")


def test_a_sampler_may_hold_the_data_set_which_is_not_copied():
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return (torch.tensor(index),)

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    data = Large()
    sampler = RandomSampler(data, generator=seeded())
    assert sorted(epochs_of(reader_of(DataLoader(data, 4, sampler=sampler)))[0]) == [*range(10)]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Endless(), "the sampler Endless cannot be used: .* it needs __len__"),
        ([], "the sampler list has the length 0 and gives 0 indices"),
        (Locked(), "the sampler Locked cannot be used: cannot pickle .*; it .* copy.deepcopy"),
        (
            Short(),
            "Short has the length 10 and gives 3 indices, or more, for epoch 1; its __len__ must",
        ),
        (
            SequentialSampler(range(11)),
            "SequentialSampler gives what is no index of 10 samples: range object index out of",
        ),
        (Named(), "Named gives what is no index of 10 samples: range indices must be integers"),
        (
            DistributedSampler(DATA, 2, 0),
            "has a DistributedSampler .each worker gets its part .*, which .*; remove it",
        ),
    ],
    ids=lambda part: "" if isinstance(part, str) else type(part).__name__,
)
def test_a_sampler_that_a_run_cannot_use_is_refused_by_name(sampler, message):
    with pytest.raises(JobError, match=message) as refused:
        epochs_of(reader_of(DataLoader(DATA, 4, sampler=sampler)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 5, "num_workers": 1},
        {"persistent_workers": True, "num_workers": 1},
        {"prefetch_factor": 3, "num_workers": 1},
        {"in_order": False, "num_workers": 1},
        {"multiprocessing_context": "spawn", "num_workers": 1},
        {"pin_memory": True},
        {"generator": seeded()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_say_nothing_about_order_have_no_effect(options):
    reader = reader_of(DataLoader(DATA, 4, **options))
    assert epochs_of(reader) == [[*range(10)]] * 3
    reader.close()
