"""Source: what user code gives `session.shards` and `evaluate`, in any of its forms.

holdfast.Dataset, map-style data set     read by index
iterable data set                        read as a stream
DataLoader                               its data set, order, collate function, workers and pinning
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import (
    Batch,
    Collate,
    as_dataset,
    generator_for,
    seed_everything,
    stacked,
)
from holdfast.data.loading.digest import digest_of_samples
from holdfast.data.loading.loaded import collated, load
from holdfast.data.loading.order import SEQUENTIAL, SHUFFLED, SampleOrder
from holdfast.data.loading.reader import Reader, SampleReader
from holdfast.data.loading.sampler_order import SamplerOrder
from holdfast.data.loading.stream import StreamReader
from holdfast.data.permutation import Indices
from holdfast.errors import JobError
from holdfast.job.settings import LoaderSettings
from holdfast.job.train_job import TrainJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of samples.

    Attributes:
        samples: A data set that is read by index, or a stream.
        collate: Makes a batch of a list of samples.
        batch_size: Samples of a batch, if a DataLoader says so.
        drops_last: True if a short last batch is left out.
        order: SHUFFLED, SEQUENTIAL, or the class of the sampler that draws the order.
        loader: The DataLoader with that sampler; None for the others.
        num_workers: Loader processes, if a DataLoader says so.
        pin_memory: True if a DataLoader pins memory.
    """

    samples: Any
    collate: Collate = stacked
    batch_size: int | None = None
    drops_last: bool = False
    order: str = SHUFFLED
    loader: DataLoader[Any] | None = None
    num_workers: int = 0
    pin_memory: bool = False

    @property
    def is_stream(self) -> bool:
        """True if its samples come one after the other."""
        samples = self.samples
        is_indexed = hasattr(samples, "__getitem__") or hasattr(samples, "batch")
        return isinstance(samples, IterableDataset) or not is_indexed

    def reader(
        self, job: TrainJob, epochs: int, steps: int, check_abort: Callable[[], None]
    ) -> Reader:
        """Reads what a run of `job` trains on.

        Args:
            job: The job.
            epochs: Passes through the samples; 0 if only `steps` ends the run.
            steps: Steps of the run; 0 if only `epochs` ends it.
            check_abort: Raises if waiting must end.

        Raises:
            JobError: The samples cannot be read so.
        """
        if self.batch_size not in (None, job.batch):
            raise JobError(
                f"the DataLoader has batch_size={self.batch_size}, and the job has "
                f"batch={job.batch}; give both the same number (it counts the samples of a step, "
                "over all workers)"
            )
        if self.is_stream:
            if self.num_workers or job.loader.workers:
                raise JobError("a stream is read by the worker itself; remove num_workers")
            return StreamReader(
                self.samples,
                self.collate,
                batch_size=job.batch,
                drops_last=self.drops_last,
                num_shards=job.shards,
                epochs=epochs,
                steps=steps,
                seed=job.seed,
                check_abort=check_abort,
            )
        dataset = as_dataset(self.samples, self.collate)
        drawn = self._drawn(job.seed, check_abort)
        order = SampleOrder(
            num_samples=len(dataset) if drawn is None else len(drawn.epoch(0)),
            batch_size=job.batch,
            num_shards=job.shards,
            epochs=1,
            seed=job.seed,
            fingerprint=dataset.fingerprint,
            drops_last=self.drops_last,
            sampler=self.order,
            drawn=None if drawn is None else drawn.epoch,
        )
        if order.steps_per_epoch == 0:
            raise JobError(
                f"{order.num_samples} samples are no batch of {job.batch}; remove drop_last"
            )
        needed = -(-steps // order.steps_per_epoch)
        return SampleReader(
            dataset,
            replace(order, epochs=epochs or needed),
            drawn,
            steps=steps,
            settings=self._settings(job.loader, on_gpu=job.device != "cpu"),
            check_abort=check_abort,
        )

    def batches(
        self, rows: range, num_rows: int, batch_size: int, check_abort: Callable[[], None]
    ) -> Iterator[tuple[int, int, Batch]]:
        """The samples for an evaluation, in batches, each of which belongs to a row.

        Which batches a row has depends on `num_rows` only.

        Args:
            rows: The rows that are wanted.
            num_rows: The number of all rows.
            batch_size: Samples of a batch, unless a DataLoader says otherwise.
            check_abort: Raises if the generation is over.

        Yields:
            The row, the number of samples, and the batch.
        """
        size = self.batch_size or batch_size
        if self.is_stream:
            yield from self._batches_of_stream(rows, num_rows, size, check_abort)
            return
        dataset = as_dataset(self.samples, self.collate)
        order = self._evaluated(check_abort)
        count = len(order) - (len(order) % size if self.drops_last else 0)
        for row in rows:
            start = count * row // num_rows
            end = count * (row + 1) // num_rows
            for first in range(start, end, size):
                check_abort()
                indices = order[first : min(first + size, end)]
                seed_everything(seed_for("evaluation", first))
                loaded = load(dataset, indices, generator_for("evaluation", first))
                if loaded is not None:
                    yield row, loaded.size, loaded.batch

    def _batches_of_stream(
        self, rows: range, num_rows: int, size: int, check_abort: Callable[[], None]
    ) -> Iterator[tuple[int, int, Batch]]:
        samples = StreamReader(
            self.samples,
            self.collate,
            batch_size=size,
            drops_last=self.drops_last,
            num_shards=1,
            epochs=1,
            steps=0,
            seed=0,
            check_abort=check_abort,
        )
        for number, batch in enumerate(samples.batches()):
            if number % num_rows in rows:
                seed_everything(seed_for("evaluation", number * size))
                loaded = collated(batch, self.collate)
                if loaded is not None:
                    yield number % num_rows, loaded.size, loaded.batch

    def digest(self, check_abort: Callable[[], None]) -> int:
        """A digest of the samples for an evaluation; 0 if there is none, as for a stream."""
        if self.is_stream:
            return 0
        dataset = as_dataset(self.samples, self.collate)
        order = self._evaluated(check_abort)
        samples = digest_of_samples(dataset)
        ends = [*order[:8].tolist(), *order[-8:].tolist()]
        return seed_for(samples, len(dataset), len(order), *ends) if samples else 0

    def _evaluated(self, check_abort: Callable[[], None]) -> Indices:
        """The samples for an evaluation, in order."""
        drawn = self._drawn(0, check_abort)
        return np.arange(len(self.samples)) if drawn is None else drawn.epoch(0)

    def _drawn(self, seed: int, check_abort: Callable[[], None]) -> SamplerOrder | None:
        return None if self.loader is None else SamplerOrder(self.loader, seed, check_abort)

    def _settings(self, given: LoaderSettings, *, on_gpu: bool) -> LoaderSettings:
        """Settings by which samples are loaded: as the job says, or else as the DataLoader does."""
        pins = on_gpu if given.pin_memory == "auto" else given.pin_memory
        return given.model_copy(
            update={
                "workers": given.workers or self.num_workers,
                "pin_memory": pins or self.pin_memory,
            }
        )


def source_of(data: object, collate: Collate | None = None) -> Source:
    """Source that user code gave, in one form.

    Args:
        data: A `holdfast.Dataset`, a map-style or iterable data set, or a DataLoader.
        collate: Makes a batch of a list of samples; by default they are stacked.

    Raises:
        JobError: It is none of these, or a DataLoader that a run cannot read like.
    """
    if isinstance(data, DataLoader):
        if collate is not None:
            raise JobError("the DataLoader has a collate_fn; remove collate")
        return _source_of_loader(data)
    if isinstance(data, type | str | bytes | Path | Mapping):
        given = (
            f"the class {data.__name__}" if isinstance(data, type) else f"a {type(data).__name__}"
        )
        raise JobError(
            f"session was given {given} as data; give it a data set, such as "
            "TensorDataset(x, y), or a DataLoader"
        )
    source = Source(samples=data, collate=collate or stacked)
    if not source.is_stream:
        as_dataset(data, source.collate)
    elif isinstance(data, Iterator):
        raise JobError(
            f"{type(data).__name__} can be read only once, and a replacement reads from the start; "
            "give an iterable data set, whose __iter__ begins at the first sample"
        )
    elif not hasattr(data, "__iter__"):
        raise JobError(
            f"{type(data).__name__} is not a data set: it needs __len__ and __getitem__, or "
            "__iter__"
        )
    return source


def _source_of_loader(loader: DataLoader[Any]) -> Source:
    batches = loader.batch_sampler
    sampler: Any = getattr(batches, "sampler", None)
    is_parted = isinstance(sampler, DistributedSampler)
    refused = {
        "its own batch_sampler": type(batches) not in (BatchSampler, type(None)),
        "batch_size=None": batches is None,
        "worker_init_fn": loader.worker_init_fn is not None,
        "a DistributedSampler (each worker gets its part of every batch)": is_parted,
    }
    for what, is_given in refused.items():
        if is_given:
            raise JobError(f"the DataLoader has {what}, which a run cannot use; remove it")
    assert isinstance(batches, BatchSampler)
    custom = None if loader.collate_fn is default_collate else loader.collate_fn
    source = Source(
        samples=loader.dataset,
        collate=custom or stacked,
        batch_size=batches.batch_size,
        drops_last=batches.drop_last,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
    )
    if source.is_stream:
        return source
    if type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(source.samples):
        if isinstance(sampler, SequentialSampler):
            return replace(source, order=SEQUENTIAL)
        if sampler.generator is None and not sampler.replacement:
            return source
    return replace(source, order=type(sampler).__name__, loader=loader)
