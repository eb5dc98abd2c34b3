"""Sampler order: the samples that the sampler of a DataLoader gives, epoch by epoch.

Every worker draws them for itself, from a copy of the sampler as it was built, so all draw the
same. Where a sampler uses the global generators, these are seeded by the job's seed and the epoch.
A generator of its own continues from epoch to epoch, so a worker that begins in a later epoch draws
the epochs before it first. Workers compare a digest of each epoch; see `worker.data_check`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import generators_kept, seed_everything
from holdfast.data.permutation import Indices
from holdfast.errors import JobError


class SamplerOrder:
    """Draws the order of each epoch from a sampler.

    Args:
        sampler: Yields indices, and has a length.
        generator: The DataLoader's own generator, which it draws from once per epoch.
        dataset: The data set of the DataLoader.
        seed: The job's seed.
        check_abort: Raises if drawing must end.

    Attributes:
        size: Samples of an epoch.
        digests: A digest of each epoch that was drawn, in order.

    Raises:
        JobError: The sampler has no length, or cannot be copied.
    """

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        dataset: Any,
        *,
        seed: int,
        check_abort: Callable[[], None],
    ) -> None:
        self._name = type(sampler).__name__
        self._num_indices = len(dataset)
        self._seed = seed
        self._check_abort = check_abort
        self.size = self._length_of(sampler)
        self.digests: list[str] = []
        self._epochs: dict[int, Indices] = {}
        # A copy, because an evaluation, or user code, may draw from the same sampler.
        own = getattr(sampler, "__dict__", {}).values()
        shared = [dataset, *(each for each in own if isinstance(each, Dataset))]
        try:
            copied = copy.deepcopy((sampler, generator), {id(each): each for each in shared})
        except Exception as error:  # noqa: BLE001  # the boundary of the user's code
            raise JobError(
                f"the sampler {self._name} cannot be copied, and a run draws from a copy of it "
                f"({type(error).__name__}: {error}); keep in it only what copy.deepcopy can copy"
            ) from None
        self._sampler, self._generator = copied

    def epoch(self, number: int) -> Indices:
        """The samples of an epoch that has not been forgotten, int64[size].

        Raises:
            Aborted: The generation is over.
            JobError: The sampler gives something else.
        """
        for each in range(len(self.digests), number + 1):
            self._check_abort()
            drawn = self._draw(each)
            self._epochs[each] = drawn
            self.digests.append(sha256(drawn.tobytes()).hexdigest()[:16])
        return self._epochs[number]

    def begin(self, number: int) -> None:
        """Draw an epoch, and forget those before it; see `epoch`."""
        self.epoch(number)
        self._epochs = {each: kept for each, kept in self._epochs.items() if each >= number}

    def _length_of(self, sampler: Any) -> int:
        try:
            size = len(sampler)
        except (TypeError, NotImplementedError):
            raise JobError(
                f"the sampler {self._name} has no length, and a run must know where an epoch ends; "
                "give it __len__"
            ) from None
        if size == 0:
            raise JobError(f"the sampler {self._name} names no samples; its length is 0")
        return size

    def _draw(self, number: int) -> Indices:
        with generators_kept():
            seed_everything(seed_for("sampler", self._seed, number))
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(number)
            # As a DataLoader does when it is iterated over: it seeds its workers.
            if self._generator is not None:
                torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            drawn = list(islice(self._sampler, self.size + 1))
        if len(drawn) != self.size:
            more = "more" if len(drawn) > self.size else str(len(drawn))
            raise JobError(
                f"the sampler {self._name} has the length {self.size} and gives {more} in epoch "
                f"{number + 1}; its __len__ must return the number of samples of an epoch"
            )
        return self._checked(drawn, number)

    def _checked(self, drawn: list[Any], number: int) -> Indices:
        try:
            order = np.fromiter(map(operator.index, drawn), np.int64, len(drawn))
        except (TypeError, OverflowError) as error:
            raise JobError(
                f"the sampler {self._name} gives what is no index in epoch {number + 1}: {error}"
            ) from None
        outside = order[(order < -self._num_indices) | (order >= self._num_indices)]
        if len(outside):
            raise JobError(
                f"the sampler {self._name} gives the index {outside[0]} in epoch {number + 1}, and "
                f"the data set holds {self._num_indices} samples"
            )
        return np.where(order < 0, order + self._num_indices, order)
