"""Error feedback: what compression keeps from the others is added to the next gradient.

A worker sends less than it has. The rest, its error, stays with it, and is part of its vector in
the next step; so nothing is lost for good, only late. Without it, top k would never send a small
element, and rounding would pull all steps the same way.

The error is in the arena of the host, in two copies: the one before a step, which the step reads,
and the one after it. A step that is computed again, after a failure, reads the same one again. A
worker that replaces a lost one of its host finds it there. If a worker is gone for good, the first
worker of the host takes what it has left. The error of a host that is lost is lost with it.

No checkpoint has errors: a step before a checkpoint is sent whole, so there is none.

Source: F. Seide et al., 1-bit stochastic gradient descent, Interspeech 2014; S. P. Karimireddy et
al., Error feedback fixes SignSGD and other gradient compression schemes, ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from holdfast.collectives.group import Group
from holdfast.collectives.slot import SlotLayout

NOTHING: Final = 0
"""In place of a step: there is no error."""


@dataclass(frozen=True, slots=True)
class ErrorMemory:
    """Memory that the workers of a host share.

    Attributes:
        errors: uint8[world_size, 2, bytes of all sums].
        steps: int64[world_size, 2]: 1 plus the number of steps committed before the one that reads
            an error, or NOTHING.
    """

    errors: torch.Tensor
    steps: torch.Tensor


class ErrorFeedback:
    """The errors of one worker, and of those of its host that are gone.

    Args:
        group: The workers.
        memory: Memory that those of this host share.
        layout: The layout of the vectors.
    """

    def __init__(self, group: Group, memory: ErrorMemory, layout: SlotLayout) -> None:
        self._group = group
        self._memory = memory
        self._layout = layout

    def add(self, step: int, vectors: Sequence[torch.Tensor]) -> None:
        """Add the error before a step to this worker's vectors, one of each dtype."""
        for rank in self._sources(step):
            for vector, error in zip(vectors, self._errors(rank, step), strict=True):
                vector.add_(error)

    def begin(self, step: int) -> list[torch.Tensor]:
        """The errors that the step leaves, which are zero and are to be written."""
        self._forget_after(step)
        errors = self._errors(self._group.rank, step + 1)
        for error in errors:
            error.zero_()
        return errors

    def end(self, step: int, *, is_whole: bool = False) -> None:
        """Note that the errors that the step leaves are complete.

        Args:
            step: Steps committed.
            is_whole: True if it leaves none: all was sent.
        """
        if is_whole:
            self._forget_after(step)
        else:
            self._memory.steps[self._group.rank, (step + 1) & 1] = step + 2

    def undo(self, step: int) -> None:
        """Leave the error as it was before a step, which does not change the weights."""
        self.add(step, self.begin(step))
        self.end(step)

    def _sources(self, step: int) -> list[int]:
        """Ranks that have an error, of those that this worker accounts for."""
        return [rank for rank in self._ranks if self._memory.steps[rank, step & 1] == step + 1]

    def _forget_after(self, step: int) -> None:
        """Forget what an attempt at the step has left that was not committed."""
        self._memory.steps[self._ranks, (step + 1) & 1] = NOTHING

    @property
    def _ranks(self) -> list[int]:
        """This worker; and of the first one of a host, also those that are not here."""
        group = self._group
        absent = set(range(len(self._memory.steps))) - set(group.local)
        return [group.rank, *(sorted(absent) if group.rank == group.local[0] else ())]

    def _errors(self, rank: int, step: int) -> list[torch.Tensor]:
        """The error of a rank that `step` reads, one vector of each dtype."""
        return self._layout.sums_in(self._memory.errors[rank, step & 1])
