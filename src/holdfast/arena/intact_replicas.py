"""Intact replicas: which replicas of a host are complete. This outlives a worker, as replicas do.

A lone worker also stores its progress here, which is the rest of its state. A worker that replaces
it continues from there, although no other worker has a state.

A replica on a device is marked there, because a device works later than its worker asks it to. So
the worker keeps the progress of several changes, and that of the change that the device has
completed counts.
"""

from __future__ import annotations

from typing import Final

import torch

from holdfast.arena.device.mapped import NUM_OUTCOMES, LeftReplica, MappedMemory
from holdfast.arena.memory import Arena, Word

PROGRESS_BYTES: Final = 1 << 20
"""The longest progress that is left. Memory that is never written costs nothing."""
NUM_PROGRESSES: Final = NUM_OUTCOMES
"""Records of a worker: it is at most a step ahead of its device, which is a change or two."""
_PREFIX: Final = 8
"""Bytes of the length before it."""


class IntactReplicas:
    """Says of which step each worker's replica is complete. Each worker writes about its own.

    Args:
        arena: Keeps the steps.
        progress: uint8[world_size, NUM_PROGRESSES, PROGRESS_BYTES], shared.
        mapped: Has the replica of this worker; None if it is in the arena, or in no memory that
            outlives it.
    """

    def __init__(
        self, arena: Arena, progress: torch.Tensor, mapped: MappedMemory | None = None
    ) -> None:
        self._arena = arena
        self._progress = progress
        self._mapped = mapped

    def begin_change(self, rank: int) -> None:
        """Note that the replica of `rank` may change until `end_change`."""
        if self._mapped is not None:
            self._mapped.begin_change()
        else:
            self._arena[rank, Word.INTACT] = self._arena[rank, Word.LEFT_PROGRESS] = 0

    def end_change(self, rank: int, step: int, progress: bytes = b"") -> None:
        """Note that the replica of `rank` is complete after `step` steps.

        Args:
            rank: The worker.
            step: Steps committed.
            progress: Rest of the state, to continue from there; not kept if it is too long.
        """
        arena = self._arena
        change = 0 if self._mapped is None else self._mapped.changes
        # The progress is whole before its word says so, and both are before the word of the
        # replica: a worker that dies in between leaves a replica that does not count.
        is_left = 0 < len(progress) <= PROGRESS_BYTES - _PREFIX
        if is_left:
            text = len(progress).to_bytes(_PREFIX) + progress
            self._progress_of(rank, change)[: len(text)] = text
        if self._mapped is None:
            if is_left:
                arena[rank, Word.LEFT_PROGRESS] = step + 1
            arena[rank, Word.INTACT] = step + 1
            return
        if not 0 < arena[rank, Word.LEFT_PROGRESS] == change - 1:
            arena[rank, Word.OLDEST_LEFT] = change
        arena[rank, Word.LEFT_PROGRESS] = change if is_left else 0
        self._mapped.end_change(step)

    def leave_outcome(self, values: torch.Tensor) -> None:
        """Leave what the step comes to that changes the replica, float64[n] on the device, if it is
        marked there.
        """
        if self._mapped is not None:
            self._mapped.leave_outcome(values)

    def is_intact(self, rank: int, step: int) -> bool:
        """True if the replica of `rank` is complete in the arena, and that of `step`."""
        # A worker that died within a change has left a zero here.
        return self._arena[rank, Word.INTACT] == step + 1

    def progress(self, rank: int, change: int = 0) -> bytes:
        """The progress that belongs to the replica of `rank`; see `Arena.intact_step` and
        `has_progress`.
        """
        memory = self._progress_of(rank, change)
        return bytes(memory[_PREFIX : _PREFIX + int.from_bytes(memory[:_PREFIX])])

    def _progress_of(self, rank: int, change: int) -> memoryview:
        memory: memoryview = self._progress[rank, change % NUM_PROGRESSES].numpy().data
        return memory


def has_progress(arena: Arena, rank: int, left: LeftReplica) -> bool:
    """True if a lost worker has left the progress that belongs to its replica."""
    newest = arena[rank, Word.LEFT_PROGRESS]
    oldest = max(arena[rank, Word.OLDEST_LEFT], newest - NUM_PROGRESSES + 1)
    return oldest <= left.change <= newest
