"""Loader: reads the samples of a worker's shards, a few shards ahead of the training.

Samples that were read ahead wait in slots keyed by (step, leaf). A thread of this process reads
them, or processes forked from it, from which the thread collects. The cursor of the run is not
here: reading ahead changes nothing that a commit, a checkpoint or another worker could see.

Samples are always read with one torch thread, because sums differ with more of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar, cast

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from holdfast.core.step.plan import WorkItem
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import Dataset, generator_for, generators_kept, name_of
from holdfast.data.loading.digest import digest_of_samples
from holdfast.data.loading.loaded import Loaded, load
from holdfast.data.loading.order import SampleOrder
from holdfast.data.loading.processes import LoaderProcesses
from holdfast.data.permutation import Indices
from holdfast.job.settings import LoaderSettings

ABORT_POLL_S: Final = 0.002
"""Seconds between two checks, while waiting for a read, whether the generation is over."""


R = TypeVar("R")
Key = tuple[int, WorkItem, Indices]
"""A step, one of its work items, and the samples of that."""


class Loader:
    """Reads the samples that one worker is assigned.

    Args:
        dataset: The data set.
        order: Order of samples, by shards.
        items: Work items of this worker in every step, in order.
        settings: How far ahead to read, and in which processes. If nothing is read ahead, each item
            is read when it is requested.
        check_abort: Raises if waiting must end.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: SampleOrder,
        items: Sequence[WorkItem],
        *,
        settings: LoaderSettings,
        check_abort: Callable[[], None],
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._items = items
        self._settings = settings
        self._check_abort = check_abort
        in_thread = settings.prefetch if getattr(dataset, "reads_ahead", True) else 0
        self._depth = max(settings.prefetch, settings.workers) if settings.workers else in_thread
        self._ahead: dict[tuple[int, int], Future[Loaded | None]] = {}
        self._next: Future[Loaded | None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._processes: LoaderProcesses[Key | None, Loaded | str | None] | None = None

    def take(self, step: int, item: WorkItem) -> Loaded | None:
        """The samples of `item` in `step`; None if it has none.

        Raises:
            Aborted: The generation ended before the samples were read.
            HoldfastError: A loader process failed; see `data.loading.processes`.
        """
        if self._depth == 0:
            return self.read_now(step, item)
        if self._thread is None:
            self._start()
        following = [*itertools.islice(self._from(step, item), self._depth + 1)]
        for ahead_step, ahead in following:
            self._submit(ahead_step, ahead)
        loaded = self._result(self._ahead[step, item.leaf])
        del self._ahead[step, item.leaf]
        self._next = next((self._ahead[at, each.leaf] for at, each in following[1:]), None)
        return loaded

    def upcoming(self) -> Loaded | None:
        """The samples that `take` returns next, unless there is another plan; None if they have not
        been read yet, or cannot be.
        """
        future = self._next
        if future is None or not future.done() or future.cancelled() or future.exception():
            return None
        return future.result()

    def read_now(self, step: int, item: WorkItem) -> Loaded | None:
        """The samples of an item that this worker is not assigned; None if it has none.

        Raises:
            Aborted: The generation ended before the samples were read.
        """
        read = functools.partial(self._read, self._key(step, item))
        if self._thread is not None:  # a data set is read by one thread at a time
            return self._result(self._thread.submit(self._finish, read))
        with _one_thread():
            return self._finish(read)

    def digest(self) -> str:
        """A digest of some samples, read by the same thread or process as all samples.

        See `data.loading.digest`.

        Raises:
            Aborted: The generation ended before the samples were read.
            HoldfastError: A loader process failed.
        """
        if self._depth == 0:
            with _one_thread(), generators_kept():
                return digest_of_samples(self._dataset)
        if self._thread is None:
            self._start()
        assert self._thread is not None
        read = functools.partial(digest_of_samples, self._dataset)
        if self._processes is not None:
            read = cast("functools.partial[str]", self._processes.begin(None))
        return self._result(self._thread.submit(read))

    def set_work_items(self, items: Sequence[WorkItem]) -> None:
        """Read these items from now on."""
        if items is self._items:
            return
        kept = {item.leaf: item for item in items}
        same = {item.leaf for item in self._items if kept.get(item.leaf) == item}
        for key in [key for key in self._ahead if key[1] not in same]:
            self._ahead.pop(key).cancel()
        self._items = items

    def close(self) -> None:
        """Discard what was read ahead and end the thread and the processes."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def _result(self, future: Future[R]) -> R:
        while not future.done():
            wait([future], ABORT_POLL_S)
            self._check_abort()
        return future.result()

    def _start(self) -> None:
        if self._settings.workers:  # forked before there is a thread
            self._processes = LoaderProcesses(
                self._read_in_fork, self._settings.workers, name_of(self._dataset)
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-loader")
        with _one_thread():  # for this thread, and as the initial number of new threads
            self._thread.submit(torch.get_num_threads).result()

    def _submit(self, step: int, item: WorkItem) -> None:
        if (step, item.leaf) in self._ahead:
            return
        assert self._thread is not None
        key = self._key(step, item)
        begun: Callable[[], Loaded | None] = functools.partial(self._read, key)
        if self._processes is not None:
            begun = cast("Callable[[], Loaded | None]", self._processes.begin(key))
        self._ahead[step, item.leaf] = self._thread.submit(self._finish, begun)

    def _from(self, step: int, item: WorkItem) -> Iterator[tuple[int, WorkItem]]:
        """Shards that this worker computes from `item` of `step` on."""
        start = self._items.index(item)
        for later in self._items[start:]:
            yield step, later
        for later_step in range(step + 1, self._order.total_steps):
            for later in self._items:
                yield later_step, later

    def _read_in_fork(self, key: Key | None) -> Loaded | str | None:
        """Called in a loader process: an item of a step, or the digest of some samples."""
        return digest_of_samples(self._dataset) if key is None else self._read(key)

    def _key(self, step: int, item: WorkItem) -> Key:
        # Here and not where samples are read: a sampler draws from the global generators.
        return step, item, self._order.indices(step, item.shards)

    def _read(self, key: Key) -> Loaded | None:
        """The samples of `key`; in this process or a fork of it."""
        step, item, indices = key
        if not len(indices):
            return None
        generator = generator_for(*sample_key(self._order.seed, step, item))
        return load(self._dataset, indices, generator)

    def _finish(self, read: Callable[[], Loaded | None]) -> Loaded | None:
        """The result of `read`, its tensors in pinned memory if that is set."""
        loaded = read()
        pin = self._settings.pin_memory and torch.cuda.is_available()  # after any fork
        if loaded is None or not pin:
            return loaded
        batch = pin_memory(loaded.batch)  # type: ignore[no-untyped-call]
        return Loaded(batch, loaded.size)


@contextmanager
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def sample_key(seed: int, step: int, item: WorkItem) -> tuple[int | str, ...]:
    """The key of the random numbers used in reading a shard, for augmentation."""
    return ("samples", seed, step, item.leaf)


def model_seed(seed: int, step: int, item: WorkItem) -> int:
    """The seed of the random numbers used in computing a shard, such as dropout."""
    return seed_for("model", seed, step, item.leaf)
