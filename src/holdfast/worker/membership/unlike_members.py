"""Unlike members: how replicas stay equal where members compute other bits.

With `numerics: mixed`, hosts may have unlike processors or GPUs. All get the same reduced gradient.
What an optimizer makes of it may differ in the last bits, though elementwise ones hardly do. So
whole replicas are compared when a generation begins and after its first steps, and a slice of them
in every step. Where they differ, members take the replica of the first one; once an update was the
cause, after every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.arena.replica import Replica
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.rundir.run_directory import log_event
from holdfast.worker.checkpoints.restore import donors_among

COMPARED_STEPS: Final = 16
"""Steps of a generation after which whole replicas are compared."""


class UnlikeMembers:
    """One worker's part in a generation.

    Args:
        group: The members.
        replica: Replica of this worker.
        step: Steps committed when the generation begins.
        run_dir: Directory for events.
        differences: Differences between the members' hardware and software.
    """

    def __init__(
        self, group: Group, replica: Replica, step: int, run_dir: Path, differences: Sequence[str]
    ) -> None:
        self._group = group
        self._replica = replica
        self._begun_at = step
        self._run_dir = run_dir
        self._follows = False
        self._log_event("hosts-differ", step=step, differences=", ".join(differences))

    def donors(self, step: int, *, is_noticed: bool) -> dict[int, int]:
        """The rank from which each takes its replica after `step` steps; empty if all are equal, or
        are not compared then.

        Args:
            step: Steps committed.
            is_noticed: True if a slice differed.

        Raises:
            Aborted: The generation is over.
        """
        is_new = step == self._begun_at
        is_early = step <= self._begun_at + COMPARED_STEPS
        if not (is_early or self._follows or is_noticed):
            return {}
        members = self._group.members
        digests = self._group.barrier(WorkerTag.COMPARE, step, self._replica.digest())
        of_rank = dict(zip(members, digests, strict=True))
        same = [rank for rank, each in of_rank.items() if each == digests[0]]
        others = [rank for rank in members if rank not in same]
        if not others:
            return {}
        # When it begins, initial weights differ, or what survivors have made of the newest step.
        if not (is_new or self._follows):
            self._follows = True
            self._log_event("updates-differ", step=step, ranks=others, donor=members[0])
        return donors_among(self._group, same)

    def _log_event(self, event: str, **fields: object) -> None:
        if self._group.member_index == 0:
            log_event(self._run_dir, event, **fields)
