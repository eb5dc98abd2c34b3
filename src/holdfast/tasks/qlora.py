"""Fine-tuning with QLoRA: adapters of a language model whose 4-bit weights are frozen.

The weights and the tokens of the text are built once on a host; see `arena.frozen_base`. Perplexity
is the exponential of the mean loss over all held-out tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import nn

from holdfast.data import catalog, tokens
from holdfast.data.dataset import Batch
from holdfast.data.formats.text import Windows
from holdfast.job.models import MistralSpec
from holdfast.job.train_job import TrainJob
from holdfast.models import mistral
from holdfast.tasks.language import TextTask
from holdfast.tasks.task import FrozenTensors

_WEIGHTS = "mistral"
_TOKENS = "tokens"


class QLora(TextTask):
    """The task `qlora`.

    Attributes:
        tensors: The frozen tensors by name; set before anything else is called.
    """

    MODELS = ("mistral",)

    def __init__(self, job: TrainJob) -> None:
        super().__init__(job)
        assert isinstance(job.model, MistralSpec)
        self._model = job.model
        self._seed = job.seed
        self.tensors: Mapping[str, Mapping[str, torch.Tensor]] = {}

    def frozen(self) -> Iterator[FrozenTensors]:
        """The network's weights, and the text as tokens if a folder has a tokenizer."""
        cache = self._model.cache
        yield FrozenTensors(
            name=_WEIGHTS,
            key=mistral.base_key(self._model, self._seed),
            build=partial(mistral.tensors, self._model, self._seed),
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
