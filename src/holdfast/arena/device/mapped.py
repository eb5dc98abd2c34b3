"""Mapped memory: what a worker keeps on its device for others, and theirs as this worker sees it.

    | header | replica | share of the mean gradient | slots of partial sums |

The others only read; a worker writes only to its own. The memory outlives its worker, so another
one can continue from the replica: its header says which state is whole. A GPU executes later than
it is asked to, and perhaps after its process was killed, so marks and replica are written in the
same order. A worker that takes over copies the replica between two looks at the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from holdfast.arena.device.memory import OwnMemory, PeerMemory, allocate, open_peer
from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.pages import PAGE

_BEGUN: Final = 0
_ENDED: Final = 1
_STEP: Final = 2
_WORDS: Final = 3
"""Words of the header: changes of the replica that have begun, and ended; steps committed in it."""
_OUTCOMES_AT: Final = 256
NUM_OUTCOMES: Final = 4
OUTCOME: Final = 32
"""Values of what a step comes to, float64, that a change may leave in the header; of so many
changes."""


@dataclass(frozen=True, slots=True)
class MappedLayout:
    """Sizes of what a worker maps, the same on every worker of a run.

    Attributes:
        replica_bytes: Size of a replica.
        share_bytes: Largest share of the mean gradient.
        slot_bytes: Size of a slot.
        num_slots: Slots of each worker.
    """

    replica_bytes: int
    share_bytes: int
    slot_bytes: int
    num_slots: int

    @property
    def share_at(self) -> int:
        """Offset of the share, bytes."""
        return PAGE + _paged(self.replica_bytes)

    def slot_at(self, number: int) -> int:
        """Offset of a slot, bytes."""
        return self.share_at + _paged(self.share_bytes) + number * _paged(self.slot_bytes)

    @property
    def size_bytes(self) -> int:
        """Size of all of it."""
        return self.slot_at(self.num_slots)


class LeftReplica(NamedTuple):
    """A whole replica that a lost worker has left.

    Attributes:
        change: Number of the change that has completed it.
        step: Steps committed in it.
    """

    change: int
    step: int


class MappedMemory:
    """The memory of one worker, and of the others of its host.

    Args:
        device: Device that the worker computes on.
        layout: Sizes of the parts.

    Attributes:
        layout: The argument.
        fd: Descriptor of the own memory.
        replica, share: Own memory, uint8[size] on the device.
        slots: The same for each slot.
        changes: Changes of the replica that have begun.
        is_readable: True if all workers of the host can read each other's.

    Raises:
        OSError: The device has too little memory, or none that can be shared.
    """

    def __init__(self, device: torch.device, layout: MappedLayout) -> None:
        self._device = device
        self.layout = layout
        self._own: OwnMemory = allocate(device, layout.size_bytes)
        self.fd = self._own.fd
        memory = self._own.bytes
        assert memory.data_ptr() % ALIGNMENT == 0
        self._marks = memory[: 8 * _WORDS].view(torch.int64)
        self._outcomes = _outcomes(memory)
        self.replica = memory[PAGE : PAGE + layout.replica_bytes]
        self.share = memory[layout.share_at :][: layout.share_bytes]
        self.slots = [
            memory[layout.slot_at(number) :][: layout.slot_bytes]
            for number in range(layout.num_slots)
        ]
        self._peers: dict[int, PeerMemory] = {}
        self.changes = 0
        self.is_readable = False
        self._is_changing = False

    def begin_change(self) -> None:
        """Mark the replica: it changes until `end_change`, and may do so already."""
        if not self._is_changing:
            self._is_changing = True
            self.changes += 1
            # By `fill_`: an assignment of a number would wait for the device.
            self._marks[_BEGUN].fill_(self.changes)

    def end_change(self, step: int) -> None:
        """Mark the replica: it is complete after `step` steps."""
        self._marks[_STEP].fill_(step)
        self._marks[_ENDED].fill_(self.changes)
        self._is_changing = False

    def leave_outcome(self, values: torch.Tensor) -> None:
        """Leave what a step comes to, float64[up to OUTCOME] on the device, with the change that
        has begun.
        """
        self._outcomes[self.changes % NUM_OUTCOMES, : len(values)].copy_(values)

    def open(self, rank: int, fd: int) -> None:
        """Map the memory of another worker of this host, in place of that of the worker before.

        Args:
            rank: The worker.
            fd: Descriptor of its memory, which is closed.

        Raises:
            OSError: It cannot be mapped.
        """
        self.forget(rank)
        self._peers[rank] = open_peer(self._device, fd, self.layout.size_bytes)

    def forget(self, rank: int) -> None:
        """Unmap the memory of another worker, if it is mapped."""
        if (peer := self._peers.pop(rank, None)) is not None:
            peer.close()

    def read_share(self, rank: int, start: int, target: torch.Tensor) -> None:
        """Copy the bytes from `start` on of the share of another worker into `target`, uint8[n]."""
        self._peers[rank].read(self.layout.share_at + start, target)

    def read_slot(self, rank: int, number: int, start: int, target: torch.Tensor) -> None:
        """Copy the bytes from `start` on of a slot of another worker into `target`, uint8[n]."""
        self._peers[rank].read(self.layout.slot_at(number) + start, target)

    def read_replica(self, rank: int, target: torch.Tensor) -> None:
        """Copy the replica of another worker into `target`, uint8[replica_bytes]."""
        self._peers[rank].read(PAGE, target)

    def left_by(self, rank: int) -> LeftReplica | None:
        """The replica that the worker before this one has left, mapped as that of `rank`; None if
        it is not whole.
        """
        marks = torch.empty(8 * _WORDS, dtype=torch.uint8, device=self._device)
        self._peers[rank].read(0, marks)
        begun, ended, step = marks.view(torch.int64).tolist()
        return LeftReplica(ended, step) if begun == ended > 0 else None

    def outcome_left_by(self, rank: int, change: int) -> list[float]:
        """The values that `leave_outcome` has left with a change, float64[OUTCOME]."""
        header = torch.empty(PAGE, dtype=torch.uint8, device=self._device)
        self._peers[rank].read(0, header)
        values: list[float] = _outcomes(header)[change % NUM_OUTCOMES].tolist()
        return values

    def take_over(self, rank: int, left: LeftReplica) -> bool:
        """Copy a replica that was left; returns False if it has changed since `left_by`."""
        self.read_replica(rank, self.replica)
        # A device that still works for the lost worker marks the replica before it writes to it.
        return self.left_by(rank) == left


def _outcomes(header: torch.Tensor) -> torch.Tensor:
    size = 8 * NUM_OUTCOMES * OUTCOME
    memory = header[_OUTCOMES_AT : _OUTCOMES_AT + size]
    return memory.view(torch.float64).view(NUM_OUTCOMES, OUTCOME)


def _paged(size_bytes: int) -> int:
    return -(-size_bytes // PAGE) * PAGE
