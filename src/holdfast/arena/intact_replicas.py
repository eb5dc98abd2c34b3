"""Intact replicas: which replicas of a host are complete. This outlives a worker, as replicas do.

A lone worker also stores its progress here, which is the rest of its state. A worker that replaces
it continues from there, although no other worker has a state.
"""

from __future__ import annotations

from typing import Final

import torch

from holdfast.arena.memory import Arena, Word

PROGRESS_BYTES: Final = 1 << 20
"""The longest progress that is left. Memory that is never written costs nothing."""
_PREFIX: Final = 8
"""Bytes of the length before it."""


class IntactReplicas:
    """Says of which step each worker's replica is complete. Each worker writes about its own.

    Args:
        arena: Keeps the steps.
        progress: uint8[world_size, PROGRESS_BYTES], shared.
    """

    def __init__(self, arena: Arena, progress: torch.Tensor) -> None:
        self._arena = arena
        self._progress = progress

    def begin_change(self, rank: int) -> None:
        """Note that the replica of `rank` may change until `end_change`."""
        self._arena[rank, Word.INTACT] = self._arena[rank, Word.LEFT_PROGRESS] = 0

    def end_change(self, rank: int, step: int, progress: bytes = b"") -> None:
        """Note that the replica of `rank` is complete after `step` steps.

        Args:
            rank: The worker.
            step: Steps committed.
            progress: Rest of the state, to continue from there; not kept if it is too long.
        """
        arena = self._arena
        # The progress is whole before its word says so, and both are before the word of the
        # replica: a worker that dies in between leaves a replica that does not count.
        length = len(progress)
        if 0 < length <= PROGRESS_BYTES - _PREFIX:
            text = length.to_bytes(_PREFIX) + progress
            self._progress[rank].numpy().data[: len(text)] = text
            arena[rank, Word.LEFT_PROGRESS] = step + 1
        arena[rank, Word.INTACT] = step + 1

    def is_intact(self, rank: int, step: int) -> bool:
        """True if the replica of `rank` is complete, and that of `step`."""
        # A worker that died within a change has left a zero here.
        return self._arena[rank, Word.INTACT] == step + 1

    def progress(self, rank: int) -> bytes:
        """The progress that belongs to the replica of `rank`; see `Arena.intact_step`."""
        memory = self._progress[rank].numpy().data
        return bytes(memory[_PREFIX : _PREFIX + int.from_bytes(memory[:_PREFIX])])
