"""Fine-tuning with QLoRA: adapters of a language model whose 4-bit weights are frozen.

The weights and the tokens of the text are built once on a host; see `arena.frozen_base`. Perplexity
is the exponential of the mean loss over all held-out tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from holdfast.data import catalog, tokens
from holdfast.data.dataset import Batch, Dataset
from holdfast.data.formats.text import Windows
from holdfast.errors import JobError
from holdfast.job.data import TextData
from holdfast.job.models import MistralSpec
from holdfast.job.train_job import TrainJob
from holdfast.models import mistral
from holdfast.tasks import optimizers
from holdfast.tasks.task import FrozenTensors

_WEIGHTS = "mistral"
_TOKENS = "tokens"


class QLora:
    """The task `qlora`.

    Attributes:
        tensors: The frozen tensors by name; set before anything else is called.

    Raises:
        JobError: The job names no text or no network of this kind.
    """

    def __init__(self, job: TrainJob) -> None:
        if not isinstance(job.data, TextData) or not isinstance(job.model, MistralSpec):
            raise JobError(f"task {job.task} needs data.name=text and model.name=mistral")
        self._data = job.data
        self._model = job.model
        self._job = job
        self.tensors: Mapping[str, Mapping[str, torch.Tensor]] = {}

    def frozen(self) -> Iterator[FrozenTensors]:
        """The network's weights, and the text as tokens if a folder has a tokenizer."""
        seed = self._job.seed
        cache = self._model.cache
        yield FrozenTensors(
            name=_WEIGHTS,
            key=mistral.base_key(self._model, seed),
            build=partial(mistral.tensors, self._model, seed),
            cache=cache,
        )
        if self._model.path is not None:
            text = catalog.read_text(self._data)
            yield FrozenTensors(
                name=_TOKENS,
                key=tokens.key_of(text, self._model.path),
                build=partial(tokens.build, text, self._model.path),
                cache=cache,
            )

    def model(self) -> nn.Module:
        return mistral.network(self._model, self.tensors[_WEIGHTS])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._job.optimizer, parameters)

    def training_data(self) -> Dataset:
        return self._windows[0]

    def test_data(self) -> Dataset:
        return self._windows[1]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def measure(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean loss of each sample, float32[n]."""
        x, y = batch
        losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        return losses.mean(1)

    @property
    def metrics(self) -> dict[str, object]:
        """Metrics from the losses of all samples."""
        return {"test_loss": _mean, "perplexity": lambda losses: math.exp(_mean(losses))}

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        if self._model.path is None:
            return catalog.build_text(self._data)
        return tokens.windows(self.tensors[_TOKENS], self._data.length)


def _mean(losses: torch.Tensor) -> float:
    return float(losses.double().mean())
