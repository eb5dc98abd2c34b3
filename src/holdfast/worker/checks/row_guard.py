"""Row guard: detects what user code writes to the rows of a model that is divided over the workers.

User code sees such weights as DTensors, and autograd does not count all writes to these. So their
bytes are compared: all of them around `session.on_commit`, a slice in every step.
"""

from __future__ import annotations

from typing import Final

from holdfast.arena.replica import Replica

_NUM_SLICES: Final = 256
_LEAST_BYTES: Final = 1 << 20
"""Size of a slice, at least: a small replica is one slice."""


class RowGuard:
    """The rows of one worker; nothing is compared where it has whole tensors.

    Args:
        replica: Has the rows.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._is_needed = replica.holding.cuts_tensors
        self._noted: tuple[int, int, int] | None = None

    def digest(self) -> int:
        """A digest of all rows."""
        return self._replica.digest() if self._is_needed else 0

    def note(self, step: int) -> None:
        """Note the state after `step` steps."""
        if self._is_needed:
            size = self._replica.flat.numel()
            length = max(-(-size // _NUM_SLICES), _LEAST_BYTES)
            start = step % -(-size // length) * length
            end = min(start + length, size)
            self._noted = start, end, self._replica.digest((start, end))

    @property
    def is_changed(self) -> bool:
        """True if the slice differs from the state that was noted."""
        if self._noted is None:
            return False
        start, end, digest = self._noted
        return self._replica.digest((start, end)) != digest
