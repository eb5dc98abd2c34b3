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
    """The resume point of a new generation. If no member has a state, it is the newest checkpoint
    of any host; without one, the run begins.

    Args:
        members: The host of every rank.
        statuses: The status of each halted host, in any order.
    """
    alive = [
        (status, rank, steps)
        for status in sorted(statuses, key=lambda status: status.host)
        for rank, steps in sorted(status.committed.items())
        if members.get(rank) == status.host
    ]
    if not alive:
        return _newest_checkpoint(statuses)
    most = max(steps for _, _, steps in alive)
    can_all_complete = all(status.reduced_step == most + 1 for status, _, _ in alive)
    step = most + 1 if can_all_complete else most
    reached = {rank: _reach(status, steps, step) for status, rank, steps in alive}
    ready = [rank for rank, steps in sorted(reached.items()) if steps == step]
    nearby: dict[str, list[int]] = {}
    for rank in ready:
        nearby.setdefault(members[rank], []).append(rank)
    donors = {
        rank: rank if reached.get(rank) == step else _donor(rank, nearby.get(host, ready))
        for rank, host in members.items()
    }
    return ResumePoint(step=step, donors=donors)


def _newest_checkpoint(statuses: Sequence[Status]) -> ResumePoint:
    held = [each.newest_checkpoint for each in statuses if each.newest_checkpoint is not None]
    if not held:
        return ResumePoint(step=0, donors={})
    newest = max(held, key=lambda checkpoint: checkpoint.step)
    return ResumePoint(step=newest.step, donors={}, checkpoint=newest.name)


def _reach(status: Status, committed: int, step: int) -> int:
    """The step that a replica can reach without state of another one, at most `step`."""
    return step if status.reduced_step == step == committed + 1 else committed


def _donor(rank: int, ready: Sequence[int]) -> int:
    """The donor of a rank, chosen so that the donors share the work."""
    return ready[rank % len(ready)]
