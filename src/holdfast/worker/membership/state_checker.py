"""Compared state: all that members must have alike between two steps, and how that is made sure.

Tensors are compared by `worker.checks.replica_checker`; what user code keeps apart from tensors by
its digest.
The latter may change between two steps alone, so a change within the loop over shards is refused on
every worker, whether another one differs by then or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.collectives.group import Group
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.membership.attach import AttachedModel
from holdfast.worker.membership.state_transfer import StateTransfer
from holdfast.worker.progress import Progress
from holdfast.worker.user_state.user_state import difference, digest


class StateChecker:
    """That of one worker.

    Args:
        assembly: What it trains; the workers have met.
        group: The workers.
        progress: How far the run has come, when all replicas are known to be equal.

    Attributes:
        comparison: Of the replicas.
    """

    def __init__(self, assembly: AttachedModel, group: Group, progress: Progress) -> None:
        assert assembly.replica is not None
        assert assembly.sections is not None
        self._replica, self._sections = assembly.replica, assembly.sections
        self._user_state, self._group = assembly.user_state, group
        self.replicas = ReplicaChecker(assembly.replica, group, progress.step)

    def remember(self, progress: Progress) -> None:
        """Note what user code keeps, now that all that it does between two steps is done.

        Raises:
            JobError: Some of it cannot be saved.
        """
        self._replica.capture_modules()
        progress.remember(self._user_state.capture())
        self._writes = self._replica.writes()
        size, most = len(json.dumps(_kept(progress))), self._sections.transfer_headers.shape[1] // 2
        if size > most:
            largest = max(_kept(progress).items(), key=lambda item: len(json.dumps(item)))[0]
            raise JobError(
                f"the user state takes {size:,} bytes, most of it in {largest}, and {most:,} can "
                "be given to another worker; keep large tensors in a module given to session.keep"
            )

    def call(self, callback: Callable[[], None], progress: Progress) -> None:
        """Call what user code does between two steps, and note which tensors it overwrites there:
        an overwritten one could be wrong, and equal again before its slice is compared.
        """
        before = self._replica.writes()
        callback()
        now = self._replica.writes()
        found = {name for name in now if now[name] != before.get(name)}
        if not found <= set(progress.overwritten):
            progress.overwritten = sorted(found.union(progress.overwritten))
            self.replicas.compare_always(progress.overwritten)

    def settle(self, progress: Progress) -> None:
        """Note that nothing changes the replica until the next commit."""
        self._sections.intact_step[self._group.rank] = progress.step + 1

    def arrived(self, progress: Progress) -> None:
        """Note the state that another worker or a checkpoint has given, or the initial one."""
        self.replicas.begin(progress.step)
        self.replicas.compare_always(progress.overwritten)
        self._writes = self._replica.writes()
        self._buffers = self._replica.digest(self._replica.buffer_range)

    def begin_loop(self, progress: Progress) -> None:
        """Note that the loop over shards begins.

        Raises:
            JobError: User code has changed the model of a run that is to continue, or uses a
                scheduler that is not kept.
        """
        self._user_state.check_schedulers()
        buffers = self._replica.digest(self._replica.buffer_range)
        changed = (self._replica.writes(), buffers) != (self._writes, self._buffers)
        if progress.step and changed:
            raise JobError(
                f"the model was changed after the state of step {progress.step} had arrived, so it "
                "would depend on when a worker was started; change it before the session is first "
                "asked for something, or in session.on_commit"
            )
        if progress.user_state:  # of a run that continues, before what code sets at its start
            progress.restore_committed_state()
            self._user_state.restore(progress.user_state)
        self.remember(progress)
        self.settle(progress)

    def user_digest(self, progress: Progress) -> int:
        """What this worker brings to a commit: a digest of what user code keeps; 56 bits.

        Raises:
            JobError: That has changed since the last commit.
        """
        before = _kept(progress)
        now = {"session.state": progress.state, **self._user_state.capture()}
        writes = self._replica.writes()
        if now != before or writes != self._writes:
            odd = (name for name in writes if writes[name] != self._writes.get(name))
            what = difference(before, now) or next(odd, "the optimizer's state")
            raise JobError(
                f"{what} changed in the loop over shards in step "
                f"{progress.step + 1}: a worker that owes no shard of a step does not run the "
                "loop, so the weights would depend on the workers. Change it in a function that "
                "is given to session.on_commit"
            )
        return progress.user_digest

    def refuse(self, progress: Progress, first: int, other: int) -> NoReturn:
        """Tell with the others what two ranks keep that differs.

        Raises:
            Aborted: The generation is over.
            JobError: Always.
        """
        handover = StateTransfer(self._group, self._sections, self._replica)
        left, right = (
            {"session.state": letter["state"], **letter["user_state"]}
            for letter in handover.exchange(progress, first, other)
        )
        raise JobError(
            f"rank {first} and rank {other} differ in {difference(left, right)}: it must be the "
            "same on every worker, and change in session.on_commit alone"
        )

    def compare_all(self, progress: Progress) -> None:
        """Compare all of the state with the other members'.

        Raises:
            Aborted: The generation is over.
            ReplicaError: The replicas differ, and this worker is to leave.
            JobError: What user code keeps differs.
        """
        group = self._group
        own = digest(_kept(progress))
        found = group.barrier(WorkerTag.COMPARE, progress.step, own)
        for rank, each in zip(group.members, found, strict=True):
            if each != found[0]:
                self.refuse(progress, group.members[0], rank)
        self.replicas.check_all(progress.step)


def _kept(progress: Progress) -> dict[str, Any]:
    return {"session.state": progress.committed_state, **progress.user_state}
