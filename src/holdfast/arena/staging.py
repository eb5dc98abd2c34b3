"""Staging: where workers copy a checkpoint to, so that it is written while they train on.

    workers ── each copies its share into the buffer ──▶ agent ── all shares are there ─▶ writer
       ▲                                                                                    │
       └────────── RELEASED: the buffer is free again ◀── agent ◀── written to disk ────────┘

Buffers are used in turn: the checkpoint with number n of a generation has buffer n modulo their
number. So a worker knows from one word whether the next one is free, and all can decide alike.
"""

from __future__ import annotations

from typing import Final

import torch

from holdfast.arena.memory import Arena
from holdfast.arena.tensors import copy_past_cache, lock_pages

NUM_BUFFERS: Final = 2
"""Checkpoints of a host that can be staged at a time: one is written while the next is copied. One
more is needed to keep a snapshot."""


class Staging:
    """The buffers in one worker.

    Args:
        arena: Says which of them are free.
        buffers: uint8[number, size], shared; each row begins on a page.
        offset: Offset of `buffers` in the arena's file, bytes.
    """

    def __init__(self, arena: Arena, buffers: torch.Tensor, offset: int) -> None:
        self._arena = arena
        self._buffers = buffers
        self._offset = offset
        self._stream: torch.cuda.Stream | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Offset of the buffers in the arena's file, and their size, bytes."""
        return self._offset, self._buffers.nbytes

    def is_free(self, number: int) -> bool:
        """True if the buffer of checkpoint `number` of this generation can be written to."""
        # None while a checkpoint of an older generation is being written: it may be in any buffer,
        # so none is free.
        released = self._arena.released
        return released is not None and number <= released + len(self._buffers)

    def offset(self, number: int) -> int:
        """Offset of the buffer of checkpoint `number` in the arena's file, bytes."""
        return self._offset + number % len(self._buffers) * self._buffers.shape[1]

    def copy(self, number: int, start: int, state: torch.Tensor) -> None:
        """Copy a range of the state, uint8[n] from offset `start`, to the buffer of checkpoint
        `number`. A GPU copies it while it computes: call `finish_copy` before the replica changes.
        """
        # `is_free` was true, so no process reads this buffer; each worker writes its own ranges.
        target = self._buffers[number % len(self._buffers), start : start + len(state)]
        if state.device.type == "cpu":
            copy_past_cache(target, state)
            return
        if self._stream is None:
            lock_pages(self._buffers)
            self._stream = torch.cuda.Stream(state.device)  # type: ignore[no-untyped-call]
        # The copy begins once the update that was queued before it is done, and runs next to the
        # next step.
        self._stream.wait_stream(torch.cuda.current_stream(state.device))
        with torch.cuda.stream(self._stream):
            target.copy_(state, non_blocking=True)

    def finish_copy(self) -> None:
        """Wait until a GPU has copied everything."""
        if self._stream is not None:
            self._stream.synchronize()
