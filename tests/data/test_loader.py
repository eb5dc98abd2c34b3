"""Reading ahead changes nothing that a step can see."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from conftest import wait_until
from holdfast.core.step.plan import WorkItem
from holdfast.data.catalog import digits
from holdfast.data.dataset import as_dataset
from holdfast.data.loading.loader import Loader
from holdfast.data.loading.order import SampleOrder
from holdfast.data.loading.source import source_of
from holdfast.errors import Aborted, JobError
from holdfast.job.settings import LoaderSettings

ITEMS = [WorkItem(shard, range(shard, shard + 1)) for shard in range(4)]


def order_of(dataset):
    return SampleOrder(
        num_samples=len(dataset),
        batch_size=32,
        num_shards=4,
        epochs=1,
        seed=3,
        fingerprint=dataset.fingerprint,
    )


def read_all(dataset, depth):
    order = order_of(dataset)
    loader = Loader(
        dataset, order, ITEMS, settings=LoaderSettings(prefetch=depth), check_abort=lambda: None
    )
    taken = [loader.take(step, item) for step in range(order.total_steps) for item in ITEMS]
    loader.close()
    return [loaded.batch for loaded in taken if loaded]


def test_read_ahead_gives_the_same_samples_and_augmentation():
    train = digits(augment=True).training
    inline, ahead = read_all(train, 0), read_all(train, 3)
    assert all(
        torch.equal(x, x2) and torch.equal(y, y2)
        for (x, y), (x2, y2) in zip(inline, ahead, strict=True)
    )


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_samples_that_come_next_are_known_once_they_are_read(depth):
    dataset = digits(augment=False).training
    order = order_of(dataset)
    settings = LoaderSettings(prefetch=depth)
    loader = Loader(dataset, order, ITEMS, settings=settings, check_abort=lambda: None)
    assert loader.upcoming() is None
    expected = None
    for step in range(order.total_steps):
        for item in ITEMS:
            loaded = loader.take(step, item)
            assert expected is None or loaded is expected
            is_last = (step, item) == (order.total_steps - 1, ITEMS[-1])
            if depth and not is_last:
                wait_until(lambda: loader.upcoming() is not None)
            expected = loader.upcoming()
            assert (expected is None) == (depth == 0 or is_last)
    loader.close()


def test_samples_that_cannot_be_read_are_not_known():
    class Damaged:
        fingerprint = "damaged"

        def __len__(self):
            return 64

        def batch(self, indices, generator):
            reads.append(None)
            if len(reads) == 2:
                raise ValueError("damaged")
            return (torch.from_numpy(indices),)

    reads = []
    order = order_of(Damaged())
    settings = LoaderSettings(prefetch=1)
    loader = Loader(Damaged(), order, ITEMS, settings=settings, check_abort=lambda: None)
    loader.take(0, ITEMS[0])
    wait_until(loader._next.done)
    assert loader.upcoming() is None
    with pytest.raises(ValueError, match="damaged"):
        loader.take(0, ITEMS[1])
    loader.close()


@pytest.mark.parametrize(
    ("given", "of_loader", "device", "pins"),
    [
        ("auto", False, "auto", True),
        ("auto", False, "cuda", True),
        ("auto", False, "cpu", False),
        ("auto", True, "cpu", True),
        (False, False, "cuda", False),
        (True, False, "cpu", True),
    ],
)
def test_memory_is_page_locked_for_a_worker_on_a_gpu(given, of_loader, device, pins):
    data = DataLoader(TensorDataset(torch.arange(4)), 4, pin_memory=of_loader)
    settings = source_of(data)._settings(LoaderSettings(pin_memory=given), on_gpu=device != "cpu")
    assert settings.pin_memory is pins


def test_a_map_style_data_set_reads_the_same_whatever_was_drawn_before():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            return torch.rand(2) + index, index

    first = read_all(as_dataset(Noisy()), 2)
    torch.manual_seed(99)
    second = read_all(as_dataset(Noisy()), 0)
    assert all(torch.equal(x, x2) for (x, _), (x2, _) in zip(first, second, strict=True))


def test_an_abort_ends_the_wait_for_samples():
    release = threading.Event()

    class Stuck:
        fingerprint = "stuck"

        def __len__(self):
            return 32

        def batch(self, indices, generator):
            release.wait(30)
            return (indices,)

    def check_abort():
        raise Aborted("the run was aborted")

    loader = Loader(
        Stuck(),
        order_of(Stuck()),
        ITEMS,
        settings=LoaderSettings(prefetch=1),
        check_abort=check_abort,
    )
    with pytest.raises(Aborted):
        loader.take(0, ITEMS[0])
    release.set()
    loader.close()


def test_a_timeout_error_of_the_data_set_is_raised():
    class Slow:
        fingerprint = "slow"

        def __len__(self):
            return 32

        def batch(self, indices, generator):
            raise TimeoutError("the file server does not answer")

    loader = Loader(
        Slow(),
        order_of(Slow()),
        ITEMS,
        settings=LoaderSettings(prefetch=1),
        check_abort=lambda: None,
    )
    with pytest.raises(TimeoutError, match="file server"):
        loader.take(0, ITEMS[0])
    loader.close()


@pytest.mark.parametrize("nonsense", [5, "", iter([1]), []])
def test_an_object_that_is_not_a_data_set_is_refused(nonsense):
    with pytest.raises(JobError):
        as_dataset(nonsense)


class Plain:
    fingerprint = "plain"

    def __len__(self):
        return 4

    def batch(self, indices, generator):
        self.reader = threading.current_thread()
        return (torch.from_numpy(indices),)


def test_a_data_set_reads_ahead_unless_it_says_no():
    quiet = type("Quiet", (Plain,), {"reads_ahead": False})
    for samples in (Plain(), quiet()):
        assert as_dataset(samples) is samples
    order = SampleOrder(
        num_samples=4, batch_size=4, num_shards=1, epochs=1, seed=0, fingerprint="plain"
    )
    item = WorkItem(0, range(1))
    for samples, ahead in ((Plain(), True), (quiet(), False)):
        loader = Loader(samples, order, [item], settings=LoaderSettings(), check_abort=lambda: None)
        assert loader.take(0, item).size == 4
        assert (samples.reader is not threading.current_thread()) == ahead
        loader.close()
