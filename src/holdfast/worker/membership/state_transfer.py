"""Handover: how a worker gets the state of another one, through the memory that they share.

    donor       letter, replica ─▶ staged ─┐            ┌─▶ both go on
    ───────────────────────────────────── STAGED ── COPIED
    who has none                           └─▶ replica ─┘

What a worker has left in its place when it was lost is compared with the state that takes its
place: a bit may have flipped in either, and the next comparison would come too late.

All members write a letter with what they know. Whoever was left behind by something that workers do
together between two steps, an evaluation say, takes that from the one who is furthest.
"""

from __future__ import annotations

import json
from typing import Any, Final

import torch

from holdfast.arena.pages import give_back
from holdfast.arena.replica import Replica
from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.group import Group
from holdfast.errors import JobError, ReplicaError
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.progress import Progress
from holdfast.worker.sections import Sections

_PREFIX: Final = 8
"""Bytes before a letter, which say how long it is."""


class StateTransfer:
    """One worker's part in every handover.

    Args:
        group: The workers.
        sections: The memory.
        replica: This worker's state.
    """

    def __init__(self, group: Group, sections: Sections, replica: Replica) -> None:
        self._group, self._sections, self._replica = group, sections, replica
        # Else it is copied there, for as long as others need it.
        self._in_arena = replica.flat.device.type == "cpu"

    def transfer(self, release: ResumeMessage, progress: Progress) -> None:
        """Give this worker's state to those who need it, or get it.

        Args:
            release: Says who gives to whom.
            progress: What this worker knows; replaced if it is given a state.

        Raises:
            Aborted: The generation is over.
        """
        group, rank = self._group, self._group.rank
        donor = release.donors[rank]
        if donor == rank:
            if rank == min(release.donors.values()):
                self._check_replicas_of_lost(release)
            self._write_header(progress)
            if any(giver == rank != taker for taker, giver in release.donors.items()):
                self._stage()
        position = progress.work_done if donor == rank else -1
        positions = group.barrier(WorkerTag.STAGED, release.step, position)
        furthest = group.members[positions.index(max(positions))]
        if donor != rank:
            self._take(donor, release.step)
            progress.replace(Progress.from_donor(self._header_of(furthest)["progress"]))
        elif position < max(positions):
            progress.catch_up(Progress.from_donor(self._header_of(furthest)["progress"]))
        group.barrier(WorkerTag.COPIED, release.step)
        if not self._in_arena:
            memory = self._staged(rank)
            give_back(memory.data_ptr(), memory.numel())

    def exchange(self, progress: Progress, *ranks: int) -> list[dict[str, Any]]:
        """Tell the others of this worker's progress; returns that of some `ranks`, as JSON values.

        Raises:
            Aborted: The generation is over.
        """
        self._write_header(progress)
        self._group.barrier(WorkerTag.COMPARE, progress.step)
        return [self._header_of(rank)["progress"] for rank in ranks]

    def _stage(self) -> None:
        if not self._in_arena:
            copy_past_cache(self._staged(self._group.rank), self._replica.flat)

    def _take(self, donor: int, step: int) -> None:
        """Take the state of `donor` after `step` steps.

        Raises:
            ReplicaError: It differs from what the worker that was lost here has left.
        """
        rank = self._group.rank
        if self._has_intact_replica(rank, step):
            self._check_equal(rank, donor, step)
        else:
            self._replica.flat.copy_(self._staged(donor))
        self._sections.intact.begin_change(rank)
        self._replica.restored(frozenset(self._header_of(donor)["absent"]))

    def _check_replicas_of_lost(self, release: ResumeMessage) -> None:
        """Compare this worker's state with what workers have left that nobody replaces.

        Raises:
            ReplicaError: One of them differs.
        """
        for rank in range(self._sections.world_size):
            if rank not in release.members and self._has_intact_replica(rank, release.step):
                self._check_equal(rank, self._group.rank, release.step)

    def _has_intact_replica(self, rank: int, step: int) -> bool:
        """Whether a lost worker has left its replica after `step` steps, whole."""
        return self._in_arena and self._sections.intact.is_intact(rank, step)

    def _check_equal(self, lost: int, rank: int, step: int) -> None:
        left, mine = self._staged(lost), self._staged(rank)
        if torch.equal(left.view(torch.int64), mine.view(torch.int64)):
            return
        pieces = (
            (each.name, slice(each.offset, each.end)) for each in self._replica.layout.entries
        )
        name = next(name for name, part in pieces if not torch.equal(left[part], mine[part]))
        raise ReplicaError(
            f"found that the lost rank {lost} had another {name} than rank {rank} after step "
            f"{step}; one of the two is wrong. Either the memory of its host is bad, or the code "
            "changes the model outside the optimizer and session.on_commit"
        )

    def _staged(self, rank: int) -> torch.Tensor:
        return self._sections.replica(rank, self._replica.flat.numel())

    def _write_header(self, progress: Progress) -> None:
        letter = {"progress": progress.to_json(), "absent": sorted(self._replica.uninitialized)}
        text = json.dumps(letter).encode()
        room = self._sections.transfer_headers[self._group.rank]
        if _PREFIX + len(text) > len(room):
            raise JobError(
                f"the user state and the results of evaluations take {len(text):,} bytes, and "
                f"{len(room) - _PREFIX:,} can be given to another worker; keep less"
            )
        framed = len(text).to_bytes(_PREFIX) + text
        room[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)

    def _header_of(self, rank: int) -> dict[str, Any]:
        room = self._sections.transfer_headers[rank].numpy()
        length = int.from_bytes(room[:_PREFIX].tobytes())
        letter: dict[str, Any] = json.loads(room[_PREFIX : _PREFIX + length].tobytes())
        return letter
