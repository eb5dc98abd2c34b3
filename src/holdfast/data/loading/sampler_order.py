"""Sampler order: the samples that the sampler of a DataLoader gives, epoch by epoch.

Every worker draws them for itself, from a copy of the sampler as it was built, so all draw the
same. Where a sampler uses the global generators, these are seeded by the job's seed and the epoch.
A generator of its own continues from epoch to epoch, so a worker that begins in a later epoch draws
the epochs before it first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import generators_kept, seed_everything
from holdfast.data.permutation import Indices
from holdfast.errors import JobError


class SamplerOrder:
    """Draws the order of each epoch.

    Args:
        loader: A DataLoader whose sampler has a length.
        seed: The job's seed.
        check_abort: Raises if drawing must end.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, check_abort: Callable[[], None]) -> None:
        dataset: Any = loader.dataset
        sampler: Any = getattr(loader.batch_sampler, "sampler", None)
        self._name = f"the sampler {type(sampler).__name__}"
        self._places = range(len(dataset))
        self._seed = seed
        self._check_abort = check_abort
        self._given: dict[str, Any] = getattr(sampler, "__dict__", {})
        held = [dataset, *(each for each in self._given.values() if isinstance(each, Dataset))]
        self._shared = {id(each): each for each in held}
        try:
            self._size = len(sampler)
            # Copied, because an evaluation, or user code, may draw from the same sampler.
            self._built = copy.deepcopy((sampler, loader.generator), {**self._shared})
        except Exception as error:  # noqa: BLE001  # the boundary of the user's code
            raise JobError(
                f"{self._name} cannot be used: {error}; it needs __len__, the number of samples of "
                "an epoch, and may hold only what copy.deepcopy takes"
            ) from None
        self._versions = _versions(self._given)
        self._digests: dict[int, str] = {}
        self._epochs: dict[int, Indices] = {}
        self._start()

    def epoch(self, number: int) -> Indices:
        """The samples of an epoch, int64[n].

        Raises:
            Aborted: The generation is over.
            JobError: The sampler gives something else.
        """
        if number < min(self._epochs):  # forgotten: the run continues from an older checkpoint
            self._start()
        while number > (last := max(self._epochs)):
            self._check_abort()
            self._epochs[last + 1] = self._draw(last + 1)
        return self._epochs[number]

    def begin(self, number: int) -> str:
        """Forget the epochs before one; returns a digest of its order.

        Raises:
            Aborted, JobError: As in `epoch`, and if user code has changed the sampler.
        """
        order = self.epoch(number)
        if number not in self._digests:
            if self._versions != _versions(self._given) and not hasattr(self._sampler, "set_epoch"):
                raise JobError(
                    f"{self._name} was changed after session.shards began, and a worker that "
                    "starts later would draw otherwise; derive the order in its method set_epoch"
                )
            self._digests[number] = sha256(order.tobytes()).hexdigest()[:16]
        self._epochs = {each: kept for each, kept in self._epochs.items() if each >= number}
        return self._digests[number]

    def _start(self) -> None:
        self._sampler, self._generator = copy.deepcopy(self._built, {**self._shared})
        self._epochs = {0: self._draw(0)}

    def _draw(self, number: int) -> Indices:
        with generators_kept():
            seed_everything(seed_for("sampler", self._seed, number))
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(number)
            # A DataLoader draws the seed of its workers first.
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            drawn = list(islice(self._sampler, self._size + 1))
        try:
            order = np.fromiter(map(self._places.__getitem__, drawn), np.int64)
        except (TypeError, IndexError) as error:
            raise JobError(
                f"{self._name} gives what is no index of {len(self._places)} samples: {error}"
            ) from None
        if not 0 < len(order) == self._size:
            raise JobError(
                f"{self._name} has the length {self._size} and gives {len(order)} indices, or "
                f"more, for epoch {number + 1}; its __len__ must be their number, above 0"
            )
        return order


def _versions(attributes: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Tells whether attributes were set again, or tensors among them written to."""
    return {name: (id(value), getattr(value, "_version", 0)) for name, value in attributes.items()}
