"""Worker log: what an agent writes down of its workers: how they end, and where all are when one
hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from holdfast.agent.activities import activities, longest_wait_s
from holdfast.agent.worker_handle import WorkerHandle
from holdfast.arena.memory import Arena
from holdfast.core.failures import Exit
from holdfast.core.protocol import Failure
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.stacks import await_stacks, innermost

STACKS_TIMEOUT_S: Final = 0.1
"""Time that workers that do not hang may take to write their stacks; as a rule milliseconds."""
LONG_WAIT_S: Final = 0.2
"""A worker that has waited for longer when its generation ends may have waited for one that hangs
on another host, which only the agent there knows. Deaths are found much sooner."""


class WorkerLog:
    """Writes to the run's events.

    Args:
        log: The events.
        arena: Arena of this host.
        can_answer: Says of a process whether it could write its stacks when last observed.
        is_script: True if the workers run a script.
    """

    def __init__(
        self, log: EventLog, arena: Arena, can_answer: Callable[[int], bool], *, is_script: bool
    ) -> None:
        self._log = log
        self._arena = arena
        self._can_answer = can_answer
        self._is_script = is_script
        self._observed_generation = 0

    def exited(self, worker: WorkerHandle, end: Exit, failure: Failure) -> None:
        """Note the end of a worker."""
        if (frames := worker.innermost_frames()) is not None:
            self._log.event("worker-stack", **worker.named, frames=frames)
        self._log.event(
            "worker-exited",
            **worker.named,
            status=end.status,
            cause=failure.cause,
            error=failure.error,
            unexpected=not end.is_expected and not failure.is_cascading,
            cascading=not end.is_expected and failure.is_cascading,
        )

    def generation_ends(self, workers: Collection[WorkerHandle], members: Collection[int]) -> None:
        """Note what the workers do, if one of them has waited for long; see `hang_found`."""
        if longest_wait_s(self._arena, [each.rank for each in workers]) >= LONG_WAIT_S:
            self.hang_found(workers, members)

    def hang_found(self, workers: Collection[WorkerHandle], members: Collection[int]) -> None:
        """Note what all workers of this host do, and where, once in a generation.

        Args:
            workers: Workers of this host.
            members: All ranks of the generation that runs.
        """
        generation = self._arena.newest_generation
        here = {each.rank: each for each in workers if each.rank in members}
        if not here or self._observed_generation == generation:
            return
        self._observed_generation = generation
        found = activities(self._arena, here, members, is_script=self._is_script)
        begins = {
            each.stacks: each.request_main_stack()
            for each in here.values()
            if not each.hung and self._can_answer(each.pid)
        }
        await_stacks(begins, STACKS_TIMEOUT_S)
        for each in found:
            worker = here[each.rank]
            begin = begins.get(worker.stacks)
            self._log.event(
                "worker-observed",
                **worker.named,
                generation=generation,
                doing=each.doing,
                **({"waits_for": each.waits_for} if each.waits_for else {}),
                frames=[] if begin is None else innermost(worker.stacks, begin, of_task=True),
            )
