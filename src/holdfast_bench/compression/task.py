"""Task of the benchmark: a built-in one, on as many samples as its steps take."""

from __future__ import annotations

import torch

from holdfast.data.dataset import Batch, Dataset
from holdfast.data.permutation import Indices
from holdfast.job.data import LabelledData
from holdfast.job.train_job import TrainJob
from holdfast.tasks.classification import Classification
from holdfast.tasks.language import LanguageModelling


class Repeated:
    """So many samples of a data set, each as often as another, or once more.

    Args:
        samples: The data set.
        size: Number of samples.
    """

    reads_ahead = True

    def __init__(self, samples: Dataset, size: int) -> None:
        self.fingerprint = f"{samples.fingerprint}:{size}"
        self._samples = samples
        self._size = size

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """The samples at `indices`, counted around."""
        return self._samples.batch(indices % len(self._samples), generator)


class StepsTask:
    """The built-in task for the job's data; `params` says how many steps to run."""

    def __init__(self, job: TrainJob) -> None:
        kind = Classification if isinstance(job.data, LabelledData) else LanguageModelling
        task = kind(job)
        self._task = task
        self._size = job.batch * job.params["steps"]
        self.model = task.model
        self.optimizer = task.optimizer
        self.test_data = task.test_data
        self.loss = task.loss
        self.measure = task.measure

    def training_data(self) -> Repeated:
        return Repeated(self._task.training_data(), self._size)
