"""Resume point: the step that a new generation resumes from, and the donor of each rank.

A step is decided once one worker has passed the last barrier of its reduction: then the reduced
gradient is complete in that host's arena, every other worker can still commit with it, and the
worker that passed may have committed already. The question is asked only when all workers have
halted, so no step is decided later. If any worker may have committed a step, all commit it. If no
worker can have, the step is computed again, with the partial sums that the survivors still have.

On several hosts each has a reduced gradient of its own, and a worker commits only once every host
has it. So no worker has committed a step that some host with a live worker cannot complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.protocol import ResumePoint, Status


def choose_resume_point(members: Mapping[int, str], statuses: Sequence[Status]) -> ResumePoint:
    """The resume point of a new generation. If no member has a state, it is what lost workers have
    left in the memory of their host; without that the newest checkpoint of any host; without one,
    the run begins.

    Args:
        members: The host of every rank.
        statuses: The status of each halted host, in any order.
    """
    # Sorted, so that the result does not depend on the order in which statuses came.
    alive = [
        (status, rank, steps)
        for status in sorted(statuses, key=lambda status: status.host)
        for rank, steps in sorted(status.committed.items())
        if members.get(rank) == status.host
    ]
    if not alive:
        return _left_behind(members, statuses) or _newest_checkpoint(statuses)
    # A lost worker may have committed step `most + 1` if every host has its reduced gradient: then
    # all commit it. Otherwise none has, and `most` steps count.
    most = max(steps for _, _, steps in alive)
    can_all_complete = all(status.reduced_step == most + 1 for status, _, _ in alive)
    step = most + 1 if can_all_complete else most
    # Replicas that are there, or get there with the gradient on their host, become donors.
    reached = {rank: _reach(status, steps, step) for status, rank, steps in alive}
    ready = [rank for rank, steps in sorted(reached.items()) if steps == step]
    return ResumePoint(step=step, donors=_donors(members, ready))


def _left_behind(members: Mapping[int, str], statuses: Sequence[Status]) -> ResumePoint | None:
    """The newest state that lost workers have left; a checkpoint may be newer only if it is of
    another attempt.
    """
    left = {
        rank: steps
        for status in statuses
        for rank, steps in status.left.items()
        if members.get(rank) == status.host
    }
    step = max(left.values(), default=0)
    if not step or step < _newest_checkpoint(statuses).step:
        return None
    ready = sorted(rank for rank, steps in left.items() if steps == step)
    return ResumePoint(step=step, donors=_donors(members, ready))


def _newest_checkpoint(statuses: Sequence[Status]) -> ResumePoint:
    held = [each.newest_checkpoint for each in statuses if each.newest_checkpoint is not None]
    if not held:
        return ResumePoint(step=0, donors={})
    newest = max(held, key=lambda checkpoint: checkpoint.step)
    return ResumePoint(step=newest.step, donors={}, checkpoint=newest.name)


def _reach(status: Status, committed: int, step: int) -> int:
    """The step that a replica can reach without state of another one, at most `step`."""
    return step if status.reduced_step == step == committed + 1 else committed


def _donors(members: Mapping[int, str], ready: Sequence[int]) -> dict[int, int]:
    """The donor of each rank: itself if it is `ready`, else one of its host if there is one, chosen
    so that the donors share the work.
    """
    nearby: dict[str, list[int]] = {}
    for rank in ready:
        nearby.setdefault(members[rank], []).append(rank)
    donors = {}
    for rank, host in members.items():
        # Within a host the state goes through shared memory; between hosts over the network.
        near = nearby.get(host, ready)
        donors[rank] = rank if rank in ready else near[rank % len(near)]
    return donors
