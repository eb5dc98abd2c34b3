"""Loader: reads the samples of a worker's shards, a few shards ahead of the training.

What is read ahead waits in slots keyed by (step, leaf). The cursor of the run is not here: reading
ahead changes nothing that a commit, a checkpoint or another worker could see.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from holdfast.core.seeds import seed_for
from holdfast.data.dataset import Batch, Dataset, generator_for
from holdfast.data.order import Order

NAP_S: Final = 0.002
"""The longest wait for a read between two looks at the abort word, seconds."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Shards that are computed together, and the leaf of the reduction tree that they fill."""

    leaf: int
    shards: range


@dataclass(frozen=True, slots=True)
class Loaded:
    """The samples of one unit in one step.

    Attributes:
        batch: What the data set gave for them.
        size: How many they are.
    """

    batch: Batch
    size: int


class Loader:
    """Reads what one worker owes.

    Args:
        dataset: Where the samples are.
        order: Which samples a shard holds.
        units: What this worker computes in every step, in order.
        depth: Units to read ahead; 0 reads each when it is asked for.
        check_abort: Raises if waiting is to end.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        units: Sequence[Unit],
        *,
        depth: int,
        check_abort: Callable[[], None],
    ) -> None:
        self._dataset, self._order, self._units = dataset, order, units
        self._depth = depth if getattr(dataset, "reads_ahead", True) else 0
        self._check_abort = check_abort
        self._ahead: dict[tuple[int, int], Future[Loaded | None]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def take(self, step: int, unit: Unit) -> Loaded | None:
        """The samples of `unit` in `step`; None where it has none.

        Raises:
            Aborted: The abort word was set while the samples were being read.
        """
        if self._depth == 0:
            return self._read(step, unit)
        for ahead_step, ahead in itertools.islice(self._from(step, unit), self._depth + 1):
            self._submit(ahead_step, ahead)
        future = self._ahead.pop((step, unit.leaf))
        while not wait([future], NAP_S).done:
            self._check_abort()
        return future.result()

    def close(self) -> None:
        """Forget what was read ahead and end the reading thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, step: int, unit: Unit) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-loader")
        if (step, unit.leaf) not in self._ahead:
            self._ahead[step, unit.leaf] = self._thread.submit(self._read, step, unit)

    def _from(self, step: int, unit: Unit) -> Iterator[tuple[int, Unit]]:
        """What this worker owes from `unit` of `step` on."""
        start = self._units.index(unit)
        for later in self._units[start:]:
            yield step, later
        for later_step in range(step + 1, self._order.total_steps):
            for later in self._units:
                yield later_step, later

    def _read(self, step: int, unit: Unit) -> Loaded | None:
        order = self._order
        indices = order.indices(step, unit.shards)
        if not len(indices):
            return None
        generator = generator_for(*sample_key(order.seed, step, unit))
        return Loaded(self._dataset.batch(indices, generator), len(indices))


def sample_key(seed: int, step: int, unit: Unit) -> tuple[int | str, ...]:
    """What the chance in reading a shard hangs on."""
    return ("samples", seed, step, unit.leaf)


def model_seed(seed: int, step: int, unit: Unit) -> int:
    """What the chance in computing a shard (dropout, say) hangs on."""
    return seed_for("model", seed, step, unit.leaf)
