"""Resumed data: whether a run that continues reads the data it began with, in the same order."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.data.dataset import Dataset, name_of
from holdfast.data.loading.loader import Loader
from holdfast.data.loading.order import SampleOrder
from holdfast.errors import JobError
from holdfast.job.train_job import TrainJob
from holdfast.worker.progress import Progress


def order_of(job: TrainJob, samples: Dataset, epochs: int, progress: Progress) -> SampleOrder:
    """The iteration order of a run over its data, noted in its `progress`.

    Raises:
        JobError: The run began with another one.
    """
    order = SampleOrder(
        num_samples=len(samples),
        batch_size=job.batch,
        num_shards=job.shards,
        epochs=epochs,
        seed=job.seed,
        fingerprint=samples.fingerprint,
    )
    now = asdict(order)
    changed = [key for key in now if progress.order.get(key, now[key]) != now[key]]
    if changed:
        key = changed[0]
        raise JobError(
            f"the run began with {key}={progress.order[key]} in session.shards and now has "
            f"{now[key]}: samples would be used twice or never. Resume with the same data "
            "and epochs, or start a new run"
        )
    progress.order = progress.order | now
    return order


def check_samples(loader: Loader, samples: Dataset, progress: Progress) -> None:
    """Compare some samples with those that the run began with, once in a life of the run.

    Raises:
        JobError: They are others.
    """
    if progress.samples_checked:
        return
    known, found = progress.order.get("samples"), loader.digest()
    if known and found and known != found:
        raise JobError(
            f"{name_of(samples)} holds other samples than when the run began, in the same "
            "number; resume with the same data, or start a new run"
        )
    progress.order["samples"], progress.samples_checked = found, True
