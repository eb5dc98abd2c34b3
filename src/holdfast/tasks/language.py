"""Language modelling on bytes: predict each byte from those before it, or masked bytes from those
around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import ClassVar, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from holdfast import models
from holdfast.data import catalog
from holdfast.data.dataset import Batch, Dataset
from holdfast.data.formats.text import Windows
from holdfast.data.permutation import Indices
from holdfast.errors import JobError
from holdfast.job.data import TextData
from holdfast.job.models import BertSpec, Gpt2Spec, GptSpec
from holdfast.job.train_job import TrainJob
from holdfast.tasks import optimizers


class TextTask:
    """Common part of tasks on text: their data, and the mean cross-entropy as loss.

    Raises:
        JobError: The job names no text or no model of the task.
    """

    MODELS: ClassVar[tuple[str, ...]]

    def __init__(self, job: TrainJob) -> None:
        name = None if job.model is None else job.model.name
        if not isinstance(job.data, TextData) or name not in self.MODELS:
            names = " or ".join(self.MODELS)
            raise JobError(f"task {job.task} needs data.name=text and model.name={names}")
        self._data = job.data
        self._optimizer = job.optimizer

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._optimizer, parameters)

    def training_data(self) -> Dataset:
        return self._windows[0]

    def test_data(self) -> Dataset:
        return self._windows[1]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        return catalog.build_text(self._data)


class LanguageModelling(TextTask):
    """The task `language`."""

    MODELS: ClassVar[tuple[str, ...]] = ("gpt", "gpt2")

    def __init__(self, job: TrainJob) -> None:
        super().__init__(job)
        assert isinstance(job.model, GptSpec | Gpt2Spec | BertSpec)
        self._model = job.model

    def model(self) -> nn.Module:
        return models.build_language_model(self._model, context=self._data.length)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        loss = float(self.loss(model, batch))
        baseline = self._windows[1].byte_entropy / math.log(2)
        return {
            "test_loss": loss,
            "bits_per_byte": loss / math.log(2),
            "byte_entropy_bits": baseline,
        }


class MaskedLanguageModelling(LanguageModelling):
    """The task `masked-language`."""

    MODELS = ("bert",)

    def training_data(self) -> Dataset:
        return Masked(self._windows[0])

    def test_data(self) -> Dataset:
        return Masked(self._windows[1])


MASK: Final = 256
"""The token that replaces a masked byte."""
IGNORE_INDEX: Final = -100
"""The target of bytes that are not predicted; `cross_entropy` ignores it."""
SHARE: Final = 0.15
"""Share of a sample's bytes that are predicted."""


class Masked:
    """Text in which some bytes are to be predicted (Devlin et al., "BERT", NAACL 2019, 3.1).

    In every sample 15 % of the bytes are selected, the same number in each, so that a mean over the
    samples is one over the selected bytes. Of these 80 % are masked, 10 % are replaced by a random
    byte, and 10 % stay as they are. The selection differs in every epoch.

    Args:
        text: Has bytes as the first part of its batches, int64[n, length].
    """

    reads_ahead = True

    def __init__(self, text: Dataset) -> None:
        self._text = text
        self.fingerprint = f"masked:{text.fingerprint}"

    def __len__(self) -> int:
        return len(self._text)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """`(x, y)`, int64[n, length] each: tokens, and the selected bytes or IGNORE_INDEX."""
        text = self._text.batch(indices, generator)[0]
        num_selected = max(1, round(SHARE * text.shape[1]))
        selected = torch.rand(text.shape, generator=generator).topk(num_selected).indices
        targets = text.gather(1, selected)
        draw = torch.rand(targets.shape, generator=generator)
        other = torch.randint(MASK, targets.shape, generator=generator)
        shown = torch.where(draw < 0.8, MASK, torch.where(draw < 0.9, other, targets))
        y = torch.full_like(text, IGNORE_INDEX).scatter_(1, selected, targets)
        return text.scatter(1, selected, shown), y
