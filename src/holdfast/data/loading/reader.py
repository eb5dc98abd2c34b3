"""Reader: what a run trains on, as the training loop sees it.

    SampleReader   any sample can be read at any time: a step's samples follow from its number
    StreamReader   samples come one after the other, and the position is part of the run's state

A worker reads only the samples of its own shards where it can. The samples of a shard never depend
on the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from holdfast.core.step.plan import WorkItem
from holdfast.data.dataset import Dataset, generator_for, name_of
from holdfast.data.loading.loaded import Loaded
from holdfast.data.loading.loader import Loader
from holdfast.data.loading.order import SampleOrder
from holdfast.data.loading.sampler_order import SamplerOrder
from holdfast.errors import JobError
from holdfast.job.settings import LoaderSettings

SAMPLES: Final = "samples"
"""Name of a digest of some samples, among what a run reads."""
SAME_DATA: Final = (
    "have every worker build the same data each time: seed a random split, sort a list of files, "
    "and seed a sampler's own generator"
)
"""Advice where data differ between workers, or between two attempts of a run."""


class Reader(Protocol):
    """Reads the samples of one worker.

    Attributes:
        epochs: Number of epochs; 0 if only `total_steps` ends the run.
        total_steps: Steps of the run; 0 if they are not known.
        facts: Values that must stay the same when the run is resumed, by name.
    """

    epochs: int
    total_steps: int
    facts: dict[str, Any]

    def is_over(self, step: int) -> bool:
        """True if the run is over when `step` steps are committed."""

    def epoch_of(self, step: int) -> int:
        """The epoch of the current step or of the newest one, from 0."""

    def ends_epoch(self, step: int) -> bool:
        """True if `step`, which is committed, was the last one of its epoch."""

    def batch_size_of(self, step: int) -> int:
        """Samples of the current step, over all workers."""

    def take(self, step: int, item: WorkItem, items: Sequence[WorkItem]) -> Loaded | None:
        """The samples of `item` in the current step, one of the `items` of this worker; None if it
        has no samples.

        Raises:
            Aborted: The generation ended before the samples were read.
            JobError: The data are not those that the run began with.
        """

    def upcoming(self) -> Loaded | None:
        """The samples that `take` is likely to return next, if they have been read."""

    def read_now(self, step: int, item: WorkItem) -> Loaded | None:
        """The samples of an item that this worker is not assigned; see `take`."""

    def borrow(self, step: int) -> Loaded:
        """Samples of others for a worker that has none and must compute something; they count
        nothing. Two, because batch normalization fails with one.
        """

    def advance(self) -> None:
        """Note that the current step is committed."""

    def check(self, step: int, known: Mapping[str, Any]) -> dict[str, Any]:
        """Compare some samples, and the order of the epoch, with what the run has noted of them;
        returns what it has to note. All members compare that before a commit.

        Raises:
            Aborted: The generation ended before the samples were read.
            JobError: They differ.
        """

    def close(self) -> None:
        """Discard what was read ahead, and end all processes."""


class SampleReader:
    """Reads a data set by index; see `Reader`.

    Args:
        dataset: The data set.
        order: Order of samples, by steps.
        drawn: Draws that order, if a sampler does.
        steps: A limit on the steps of the run; 0 for none.
        settings: Options for loading samples.
        check_abort: Raises if waiting must end.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: SampleOrder,
        drawn: SamplerOrder | None,
        *,
        steps: int,
        settings: LoaderSettings,
        check_abort: Callable[[], None],
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._drawn = drawn
        self._is_checked = False
        self._settings = settings
        self._check_abort = check_abort
        self._loader: Loader | None = None
        self.epochs = order.epochs
        self.total_steps = min(order.total_steps, steps or order.total_steps)
        self.facts = {key: value for key, value in vars(order).items() if key != "drawn"}
        self.facts |= {"steps": steps} if steps else {}
        self.facts |= {} if drawn is None else {"first_epoch": drawn.begin(0)}

    def is_over(self, step: int) -> bool:
        """Implements `Reader`."""
        return step >= self.total_steps

    def epoch_of(self, step: int) -> int:
        """Implements `Reader`."""
        return self._order.epoch_of(step)

    def ends_epoch(self, step: int) -> bool:
        """Implements `Reader`."""
        return self._order.ends_epoch(step) or step + 1 == self.total_steps

    def batch_size_of(self, step: int) -> int:
        """Implements `Reader`."""
        return self._order.batch_size_of(step)

    def take(self, step: int, item: WorkItem, items: Sequence[WorkItem]) -> Loaded | None:
        """Implements `Reader`."""
        loader = self._loader_of(items)
        loader.set_work_items(items)
        return loader.take(step, item)

    def upcoming(self) -> Loaded | None:
        """Implements `Reader`."""
        return None if self._loader is None else self._loader.upcoming()

    def read_now(self, step: int, item: WorkItem) -> Loaded | None:
        """Implements `Reader`."""
        return self._loader_of([item]).read_now(step, item)

    def borrow(self, step: int) -> Loaded:
        """Implements `Reader`."""
        indices = self._order.indices(step, range(self._order.num_shards))[:2]
        return Loaded(self._dataset.batch(indices, generator_for("borrowed", step)), 0)

    def advance(self) -> None:
        """Implements `Reader`."""

    def check(self, step: int, known: Mapping[str, Any]) -> dict[str, Any]:
        """Implements `Reader`."""
        noted = {}
        if not self._is_checked:
            now = self._loader_of(()).digest()
            noted[SAMPLES] = before = known.get(SAMPLES, now)
            self._is_checked = True
            # Without a digest, reading them is not repeatable.
            if before and now and before != now:
                raise JobError(
                    f"{name_of(self._dataset)} holds other samples than when the run began, in the "
                    f"same number; {SAME_DATA}, or start a new run"
                )
        if self._drawn is not None and not self.is_over(step):
            noted["epoch_order"] = self._drawn.begin(self.epoch_of(step))
        return noted

    def close(self) -> None:
        """Implements `Reader`."""
        if self._loader is not None:
            self._loader.close()

    def _loader_of(self, items: Sequence[WorkItem]) -> Loader:
        if self._loader is None:
            self._loader = Loader(
                self._dataset,
                self._order,
                items,
                settings=self._settings,
                check_abort=self._check_abort,
            )
        return self._loader
