"""Settlement: what counts as committed when a step was interrupted, and who gives it to whom.

A step is decided once one worker has passed the last barrier of its reduction: then the reduced
gradient lies complete in that host's arena, every other worker can still commit with it, and
whoever passed may have committed already. Nobody decides it later, for it is asked only when all
workers stand still. So of a step that anyone may have committed, all commit; and of one that is
undecided nobody has, and it is computed again, with what the survivors have of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.protocol import ResumePoint, Status, StoredCheckpoint


def choose_resume_point(
    members: Mapping[int, str], reports: Sequence[Status]
) -> ResumePoint | None:
    """The resume point of a new generation; None if no member has a state.

    Args:
        members: The host of every rank.
        reports: The status of each halted host, in any order.
    """
    reach = {
        rank: _reach(report, steps)
        for report in sorted(reports, key=lambda report: report.host)
        for rank, steps in sorted(report.committed.items())
        if members.get(rank) == report.host
    }
    if not reach:
        return None
    step = max(reach.values())
    ready = [rank for rank, steps in sorted(reach.items()) if steps == step]
    near: dict[str, list[int]] = {}
    for rank in ready:
        near.setdefault(members[rank], []).append(rank)
    donors = {
        rank: rank if reach.get(rank) == step else _donor(rank, near.get(host, ready))
        for rank, host in members.items()
    }
    return ResumePoint(step=step, donors=donors)


def resume_from(checkpoint: StoredCheckpoint | None) -> ResumePoint:
    """The resume point of a generation that loads a checkpoint; None begins the run."""
    if checkpoint is None:
        return ResumePoint(step=0, donors={})
    return ResumePoint(step=checkpoint.step, donors={}, checkpoint=checkpoint.name)


def _reach(report: Status, committed: int) -> int:
    """The steps that a replica can have behind it without help from another host."""
    return report.reduced_step if report.reduced_step == committed + 1 else committed


def _donor(rank: int, ready: Sequence[int]) -> int:
    """Who gives a rank its state, so that they share the work."""
    return ready[rank % len(ready)]
