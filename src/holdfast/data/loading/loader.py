"""Loader: reads the samples of a worker's shards, a few shards ahead of the training.

What is read ahead waits in slots keyed by (step, leaf). It is read by a thread of this process, or
by processes forked from it, from which that thread collects. The cursor of the run is not here:
reading ahead changes nothing that a commit, a checkpoint or another worker could see.

Whoever reads does so with one of torch's threads, for with more of them sums come out differently.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import torch

from holdfast.core.plan import WorkItem
from holdfast.core.seeds import seed_for
from holdfast.data.dataset import Batch, Dataset, generator_for, generators_kept, name_of
from holdfast.data.loading.digest import digest_of_samples
from holdfast.data.loading.order import SampleOrder
from holdfast.data.loading.processes import LoaderProcesses
from holdfast.job.settings import LoaderSettings

ABORT_POLL_S: Final = 0.002
"""The longest wait for a read between two looks whether the generation is over, seconds."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The samples of one unit in one step.

    Attributes:
        batch: What the data set gave for them.
        size: How many they are.
    """

    batch: Batch
    size: int


R = TypeVar("R")
Key = tuple[int, WorkItem]
"""A step, and a unit of it."""


class Loader:
    """Reads what one worker owes.

    Args:
        dataset: Where the samples are.
        order: Which samples a shard holds.
        units: What this worker computes in every step, in order.
        settings: How far ahead to read, and in which processes. Where nothing is read ahead, each
            unit is read when it is asked for.
        check_abort: Raises if waiting is to end.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: SampleOrder,
        units: Sequence[WorkItem],
        *,
        settings: LoaderSettings,
        check_abort: Callable[[], None],
    ) -> None:
        self._dataset, self._order, self._units = dataset, order, units
        self._settings, self._check_abort = settings, check_abort
        in_thread = settings.prefetch if getattr(dataset, "reads_ahead", True) else 0
        self._depth = max(settings.prefetch, settings.workers) if settings.workers else in_thread
        self._ahead: dict[tuple[int, int], Future[Loaded | None]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._processes: LoaderProcesses[Key | None, Loaded | str | None] | None = None

    def take(self, step: int, unit: WorkItem) -> Loaded | None:
        """The samples of `unit` in `step`; None where it has none.

        Raises:
            Aborted: The generation was over before the samples were read.
            HoldfastError: A loader process failed; see `data.loading.processes`.
        """
        if self._depth == 0:
            return self.read_now(step, unit)
        if self._thread is None:
            self._start()
        for ahead_step, ahead in itertools.islice(self._from(step, unit), self._depth + 1):
            self._submit(ahead_step, ahead)
        found = self._result(self._ahead[step, unit.leaf])
        del self._ahead[step, unit.leaf]
        return found

    def read_now(self, step: int, unit: WorkItem) -> Loaded | None:
        """The samples of a unit that this worker does not owe; None where it has none.

        Raises:
            Aborted: The generation was over before the samples were read.
        """
        read = functools.partial(self._read, (step, unit))
        if self._thread is not None:  # a data set is read by one thread at a time
            return self._result(self._thread.submit(self._finish, read))
        with _one_thread():
            return self._finish(read)

    def digest(self) -> str:
        """A digest of some samples, read where all are read; see `data.loading.digest`.

        Raises:
            Aborted: The generation was over before the samples were read.
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

    def set_work_items(self, units: Sequence[WorkItem]) -> None:
        """Read these units from now on."""
        if units is self._units:
            return
        kept = {unit.leaf: unit for unit in units}
        same = {unit.leaf for unit in self._units if kept.get(unit.leaf) == unit}
        for key in [key for key in self._ahead if key[1] not in same]:
            self._ahead.pop(key).cancel()
        self._units = units

    def close(self) -> None:
        """Forget what was read ahead and end what reads."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def _result(self, future: Future[R]) -> R:
        while not wait([future], ABORT_POLL_S).done:
            self._check_abort()
        return future.result()

    def _start(self) -> None:
        if self._settings.workers:  # forked before there is a thread
            self._processes = LoaderProcesses(
                self._read_in_fork, self._settings.workers, name_of(self._dataset)
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-loader")
        with _one_thread():  # this thread's own number, and the one that others begin with
            self._thread.submit(torch.get_num_threads).result()

    def _submit(self, step: int, unit: WorkItem) -> None:
        if (step, unit.leaf) in self._ahead:
            return
        assert self._thread is not None
        begun: Callable[[], Loaded | None] = functools.partial(self._read, (step, unit))
        if self._processes is not None:
            begun = cast("Callable[[], Loaded | None]", self._processes.begin((step, unit)))
        self._ahead[step, unit.leaf] = self._thread.submit(self._finish, begun)

    def _from(self, step: int, unit: WorkItem) -> Iterator[tuple[int, WorkItem]]:
        """What this worker owes from `unit` of `step` on."""
        start = self._units.index(unit)
        for later in self._units[start:]:
            yield step, later
        for later_step in range(step + 1, self._order.total_steps):
            for later in self._units:
                yield later_step, later

    def _read_in_fork(self, key: Key | None) -> Loaded | str | None:
        """What a loader process is asked for: a unit in a step, or the digest of some samples."""
        return digest_of_samples(self._dataset) if key is None else self._read(key)

    def _read(self, key: Key) -> Loaded | None:
        """What `key`, a step and a unit, stands for; in this process or a fork of it."""
        step, unit = key
        order = self._order
        indices = order.indices(step, unit.shards)
        if not len(indices):
            return None
        generator = generator_for(*sample_key(order.seed, step, unit))
        return Loaded(self._dataset.batch(indices, generator), len(indices))

    def _finish(self, read: Callable[[], Loaded | None]) -> Loaded | None:
        """What `read` gives, its tensors pinned if that is asked for."""
        loaded = read()
        pin = self._settings.pin_memory and torch.cuda.is_available()  # asked after any fork
        if loaded is None or not pin:
            return loaded
        parts = (x.pin_memory() if isinstance(x, torch.Tensor) else x for x in loaded.batch)
        return Loaded(tuple(parts), loaded.size)


@contextmanager
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def sample_key(seed: int, step: int, unit: WorkItem) -> tuple[int | str, ...]:
    """What the chance in reading a shard hangs on."""
    return ("samples", seed, step, unit.leaf)


def model_seed(seed: int, step: int, unit: WorkItem) -> int:
    """What the chance in computing a shard (dropout, say) hangs on."""
    return seed_for("model", seed, step, unit.leaf)
