"""State transfer: how a worker gets the state of another one.

    donor            header, replica ─▶ STAGED ─┐            ┌─▶ both resume
                                                ├─▶ COPIED ──┤
    joining worker   ─────────────────▶ STAGED ─┘  replica ──┘

A lost worker may leave an intact replica of the same step. The worker that replaces it keeps that
replica and compares it with the donor's: a bit may have flipped in either one, and the next replica
check would come too late.

Every donor sends a header with its progress. A donor that missed something that workers do together
between two steps, such as an evaluation, takes it from the header of the donor that is furthest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from holdfast.arena.device.mapped import MappedMemory
from holdfast.arena.memory import MAILBOX_BYTES
from holdfast.arena.pages import give_back
from holdfast.arena.replica import Replica
from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.device_queue import DeviceQueue
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.collectives.slot import NUM_STATS
from holdfast.collectives.tcp import Buffers
from holdfast.errors import JobError, NoStateError, ReplicaError
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.agent_link import SelfEviction
from holdfast.worker.metrics import Metrics
from holdfast.worker.progress import Progress
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.commit import PendingOutcome

_PREFIX: Final = 8
"""Bytes of a header before its JSON: `Progress.work_done`."""


class StateTransfer:
    """One worker's part in every state transfer.

    Args:
        group: The workers.
        sections: The memory that the workers of this host share.
        replica: This worker's state.
    """

    def __init__(self, group: Group, sections: Sections, replica: Replica) -> None:
        self._group = group
        self._sections = sections
        self._replica = replica
        # Others read a replica where it is, if they can. Else it is staged in the arena for as long
        # as they need it.
        self._in_arena = sections.holds(replica.flat)
        self._queue = DeviceQueue(replica.flat.device)

    @property
    def _mapped(self) -> MappedMemory | None:
        """Memory through which the workers of a host read each other's replicas, if they can."""
        mapped = self._sections.mapped
        is_read = mapped is not None and mapped.is_readable and self._group.network is None
        return mapped if is_read else None

    def transfer(self, resume: ResumeMessage, progress: Progress, metrics: Metrics) -> None:
        """Send this worker's state to joining workers, or receive it.

        Args:
            resume: Names the donor of each rank.
            progress: Progress of this worker; replaced if it receives its state.
            metrics: Metrics of this worker, which also get what the newest steps have logged.

        Raises:
            Aborted: The generation is over.
            SelfEviction: The replica of a lost worker differs from a donor's.
            JobError: The user state is too large.
        """
        group = self._group
        rank = self._group.rank
        step = resume.step
        donor = resume.donors[rank]
        header = b""
        if donor == rank:
            # One donor is enough: all donors of a step have equal replicas, or a check finds that
            # they do not.
            if rank == min(resume.donors.values()):
                self._check_replicas_of_lost(resume)
            header = self._header(progress, metrics.for_others() if group.network else ())
            if any(giver == rank != joining for joining, giver in resume.donors.items()):
                self._stage()
        # After this barrier every donor's replica can be read, and none changes before `COPIED`.
        payloads = group.gather(WorkerTag.STAGED, step, header)
        headers = dict(zip(group.members, payloads, strict=True))
        furthest = max(payloads, key=_work_done)
        self._exchange_replicas(resume.donors, step)
        # A joining worker: after the tensors the optimizers' knowledge of them, then the progress.
        if donor != rank:
            donated = headers[donor]
            self._replica.restored(frozenset(_parse(donated)["uninitialized"]))
            # Values that belong to the donor's tensors, unless others have done more.
            leader = furthest if _work_done(furthest) > _work_done(donated) else donated
            progress.replace(Progress.from_donor(_parse(leader)["progress"]))
            metrics.recent.extend(_parse(donated)["recent"])
        # A donor that was aborted between two steps: what the others did together is not done
        # twice.
        elif _work_done(header) < _work_done(furthest):
            progress.catch_up(Progress.from_donor(_parse(furthest)["progress"]))
        # After this barrier no member reads another one's replica, so training may change it.
        self._queue.wait()
        group.barrier(WorkerTag.COPIED, step)
        if any(giver != joining for joining, giver in resume.donors.items()):
            metrics.note_transfer(self._replica.flat.nbytes)
        # The staged copy has served: its pages go back to the host.
        if not self._in_arena:
            memory = self._staged(rank)
            give_back(memory.data_ptr(), memory.numel())

    def align(self, donors: Mapping[int, int], step: int) -> None:
        """Give other workers this one's replica, or take theirs, when all have committed `step`.

        Args:
            donors: The donor of each rank, as in `ResumeMessage`.
            step: Steps committed.

        Raises:
            Aborted: The generation is over; a replica that was to be replaced may be lost.
        """
        group = self._group
        rank = group.rank
        # From here on what this worker has is not taken for a replica of the step.
        if donors[rank] != rank:
            self._sections.intact.begin_change(rank)
        elif any(giver == rank != joining for joining, giver in donors.items()):
            self._stage()
        group.barrier(WorkerTag.STAGED, step)
        self._exchange_replicas(donors, step)
        self._queue.wait()
        group.barrier(WorkerTag.COPIED, step)

    def _exchange_replicas(self, donors: Mapping[int, int], step: int) -> None:
        """Send the replicas of this host's donors to other hosts, and take that of the own donor.
        Donors have staged theirs, and change nothing before `COPIED`.
        """
        group = self._group
        rank = group.rank
        donor = donors[rank]
        if group.network is not None:
            self._send_between_hosts(group.network, donors)
            if not self._in_arena:  # the leader has received what other workers copy
                group.local_barrier(WorkerTag.RECEIVED, step)
        if donor == rank:
            return
        if donor in group.local:
            self._take(donor, step)
        else:  # the leader of this host has received it, or does so until `COPIED`
            self._sections.intact.begin_change(rank)
            if not self._in_arena:
                self._replica.flat.copy_(self._staged(rank))

    def _send_between_hosts(self, network: Network, donors: Mapping[int, int]) -> None:
        """Send replicas of this host's donors to other hosts, and receive those of joining workers.
        A host's leader does this for all of its workers; `COPIED` comes after it.
        """
        # Lane 0 of each host carries all replicas; it belongs to the leader.
        if self._group.rank != self._group.local[0]:
            return

        def replicas(joining: int, giving: int, *, of_donor: bool) -> Buffers:
            hosts = network.hosts
            for rank in hosts.ranks[joining]:
                donor = donors[rank]
                if donor in hosts.ranks[giving]:
                    yield self._staged(donor if of_donor else rank).numpy().data

        mine = network.host
        flows = {
            (host, 0): (
                replicas(host, mine, of_donor=True),
                replicas(mine, host, of_donor=False),
            )
            for host in network.others
        }
        network.transfer(flows, "the state of other hosts")

    def exchange(self, progress: Progress, *ranks: int) -> list[dict[str, Any]]:
        """Show the others this worker's progress; returns that of some `ranks`, as JSON values.

        Raises:
            Aborted: The generation is over.
        """
        payloads = self._group.gather(WorkerTag.COMPARE, progress.step, self._header(progress))
        headers = dict(zip(self._group.members, payloads, strict=True))
        return [_parse(headers[rank])["progress"] for rank in ranks]

    def _stage(self) -> None:
        """Let others read this worker's replica."""
        if not self._in_arena and self._mapped is None:
            copy_past_cache(self._staged(self._group.rank), self._replica.flat)
        self._queue.wait()

    def _take(self, donor: int, step: int) -> None:
        """Take the replica of `donor` after `step` steps.

        Raises:
            SelfEviction: It differs from the one that the lost worker of this rank has left.
        """
        rank = self._group.rank
        if self._mapped is not None:
            self._mapped.read_replica(donor, self._replica.flat)
        # An intact replica of the same step that has the donor's bits need not be copied.
        elif not (self._has_intact_replica(rank, step) and self._is_equal(rank, donor, step)):
            self._replica.flat.copy_(self._staged(donor))
        # From here on it is this worker's; it is intact again at its next commit.
        self._sections.intact.begin_change(rank)

    def _check_replicas_of_lost(self, resume: ResumeMessage) -> None:
        """Compare this worker's replica with those of lost workers that no worker replaces.

        Raises:
            SelfEviction: One of them differs.
        """
        for rank in range(self._sections.world_size):
            if rank not in resume.members and self._has_intact_replica(rank, resume.step):
                self._is_equal(rank, self._group.rank, resume.step)

    def _has_intact_replica(self, rank: int, step: int) -> bool:
        """True if a lost worker has left its replica after `step` steps, whole."""
        return self._in_arena and self._sections.intact.is_intact(rank, step)

    def _is_equal(self, lost: int, donor: int, step: int) -> bool:
        """True if the replica that a lost worker has left has the bits of the donor's. Where it
        does not, yet no tensor differs, the difference is in the padding, which is no state.

        Raises:
            SelfEviction: A tensor differs.
        """
        left = self._staged(lost)
        right = self._staged(donor)
        # The common case: one pass over both. Only a difference is looked for tensor by tensor.
        if torch.equal(left.view(torch.int64), right.view(torch.int64)):
            return True
        for entry in self._replica.layout.entries:
            piece = slice(entry.offset, entry.end)
            if not torch.equal(left[piece], right[piece]):
                error = ReplicaError(
                    f"found that tensor {entry.name} of the failed rank {lost} differs from that "
                    f"of rank {donor} after step {step}; one of the two is wrong. Either the "
                    "memory of its host is faulty, or the code changes the model outside the "
                    "optimizer and session.on_commit"
                )
                raise SelfEviction(error)
        return False

    def _staged(self, rank: int) -> torch.Tensor:
        return self._sections.replica(rank, self._replica.flat.numel())

    def load_intact_replica(self, step: int) -> Progress:
        """Take over what a lost worker of this rank has left after `step` steps: its replica, which
        stays where it is in the arena; returns its progress.

        Raises:
            SelfEviction: Its device still changes what it has left.
            NonFiniteError: The gradient of its last step is not finite, and the run is to stop.
        """
        rank = self._group.rank
        intact = self._sections.intact
        mapped = self._sections.mapped
        change = 0
        if mapped is not None:
            change = self._copy_left(mapped, rank)
        else:
            assert intact.is_intact(rank, step), "a rank continues from a replica that is not whole"
        left = json.loads(intact.progress(rank, change))
        # The tensors are in place; only the objects around them are new in this process.
        self._replica.restored(frozenset(left["uninitialized"]))
        progress = Progress.from_donor(left["progress"])
        if progress.pending is not None and mapped is not None:
            values = mapped.outcome_left_by(rank, change)[: NUM_STATS + 1]
            outcome = PendingOutcome.from_json(progress.pending["outcome"]).read(values, dict)
            progress.settle(progress.pending["record"], outcome)
        return progress

    def _copy_left(self, mapped: MappedMemory, rank: int) -> int:
        """Copy the replica that was left on a device; returns the change that has completed it."""
        left = mapped.left_by(rank)
        if left is None or not mapped.take_over(rank, left):
            error = NoStateError("has no state yet: the device of a lost worker still changes it")
            raise SelfEviction(error)
        return left.change

    def _header(self, progress: Progress, recent: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Knowledge of this worker, for the others.

        Raises:
            JobError: The user state is too large.
        """
        header = {
            "progress": progress.to_json(),
            "recent": list(recent),
            "uninitialized": self._replica.uninitialized,
        }
        text = json.dumps(header).encode()
        most = MAILBOX_BYTES - _PREFIX
        if len(text) > most:
            raise JobError(
                f"the user state and the results of evaluations take {len(text):,} bytes; at most "
                f"{most:,} can be sent to another worker. Keep less, or keep large tensors in a "
                "module given to session.register"
            )
        return progress.work_done.to_bytes(_PREFIX) + text


def packed(progress: Progress, replica: Replica) -> bytes:
    """Content that a lone worker leaves with its replica; see `load_intact_replica`."""
    left = {"progress": progress.to_json(), "uninitialized": replica.uninitialized}
    return json.dumps(left).encode()


def _work_done(header: bytes) -> int:
    return int.from_bytes(header[:_PREFIX]) if header else -1


def _parse(header: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(header[_PREFIX:])
    return fields
