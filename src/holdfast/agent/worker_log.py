"""Worker log: what an agent writes down of its workers: when a generation begins, how they end, and
where all are when one hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from holdfast.agent.worker_handle import WorkerHandle
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import newest_barrier
from holdfast.core.actions import ResumeWorkers
from holdfast.core.failures import Exit
from holdfast.core.protocol import Eviction, Failure
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
        where: Name of this host in an event; see `RunContext.where`.
        arena: Arena of this host.
        can_answer: Says of a process whether it could write its stacks when last observed.
        is_script: True if the workers run a script.
    """

    def __init__(
        self,
        log: EventLog,
        where: Mapping[str, str],
        arena: Arena,
        can_answer: Callable[[int], bool],
        *,
        is_script: bool,
    ) -> None:
        self._log = log
        self._where = where
        self._arena = arena
        self._can_answer = can_answer
        self._is_script = is_script
        self._observed_generation = 0

    def generation_begins(
        self,
        action: ResumeWorkers,
        members: Iterable[int],
        committed: int,
        workers: Iterable[WorkerHandle],
    ) -> None:
        """Note that a generation begins.

        Args:
            action: Says where it begins.
            members: All of them, by rank.
            committed: The most steps that a member of this host had committed.
            workers: All of this host.
        """
        halted_at = max((each.halted_at for each in workers if each.halted_at), default=None)
        self._log.event(
            "generation-started",
            number=action.generation,
            members=members,
            step=action.start.step,
            last_committed_step=committed,
            from_checkpoint=not action.start.donors,
            checkpoint=action.start.checkpoint,
            **({} if halted_at is None else {"halted_at": round(halted_at, 6)}),
        )

    def standbys_change(
        self, workers: Iterable[WorkerHandle], standbys: Mapping[int, Eviction], step: int
    ) -> None:
        """Note which workers go to standby with a generation, and which return from there.

        Args:
            workers: All of this host.
            standbys: The ranks that are on standby now, and why.
            step: From which the others resume.
        """
        for worker in workers:
            before = worker.is_on_standby
            eviction = standbys.get(worker.rank)
            worker.is_on_standby = eviction is not None
            if eviction is not None and not before:
                reason = eviction.reason
                self._log.event(
                    "worker-evicted", **worker.named, step=step, reason=reason, **self._where
                )
            elif eviction is None and before:
                self._log.event("worker-returned", **worker.named, step=step, **self._where)

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
        if failure.cap is not None and not end.is_expected:
            self._log.event(
                "worker-out-of-memory",
                **worker.named,
                **self._where,
                planned=self._arena[worker.rank, Word.PLANNED],
                cap=failure.cap,
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
        # Read before they are asked for stacks: by then some may do something else.
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


_WAITS: Final = frozenset({Phase.WAIT, Phase.WAIT_REDUCE})
_WORDS: Final = MappingProxyType(
    {
        Phase.STARTING: "starting",
        Phase.DATA: "reading samples of step {next}",
        Phase.FORWARD: "running the task's code in step {next}",
        Phase.BACKWARD: "in the backward pass of step {next}",
        Phase.COLLECT: "collecting its gradients of step {next}",
        Phase.WAIT_REDUCE: "waiting for gradients of step {next}",
        Phase.REDUCE: "summing the gradient of step {next}",
        Phase.OPTIMIZER: "updating the weights in step {next}",
        Phase.EVALUATE: "evaluating after step {step}",
        Phase.CHECKPOINT: "saving the checkpoint of step {step}",
        Phase.LEFT: "at the end of the training function",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity of one worker.

    Attributes:
        rank: The worker.
        doing: In words, after "rank 2 was".
        waits_for: The ranks that it waits for, as far as this host knows: of other hosts, all.
    """

    rank: int
    doing: str
    waits_for: tuple[int, ...] = ()


def activities(
    arena: Arena, local: Collection[int], members: Iterable[int], *, is_script: bool
) -> list[Activity]:
    """Activities of the workers of this host, who publish their phases and barriers in its arena.

    Args:
        arena: Arena of this host.
        local: Their ranks.
        members: All ranks of the generation.
        is_script: True if they run a script, whose steps and waits are not known.
    """
    remote = tuple(rank for rank in members if rank not in local)
    return [_activity(arena, rank, local, remote, is_script=is_script) for rank in local]


def longest_wait_s(arena: Arena, ranks: Iterable[int]) -> float:
    """For how long those of `ranks` have waited that wait for others; that of the longest."""
    now = time.monotonic_ns()
    waiting = [rank for rank in ranks if arena[rank, Word.PHASE] in _WAITS]
    return max((now - arena[rank, Word.PHASE_SINCE] for rank in waiting), default=0) / 1e9


def _activity(
    arena: Arena, rank: int, local: Collection[int], remote: tuple[int, ...], *, is_script: bool
) -> Activity:
    phase = Phase(arena[rank, Word.PHASE])
    step = arena[rank, Word.COMMITTED]
    if phase in _WAITS:
        barrier = newest_barrier(arena, rank)
        if barrier is None:
            return Activity(rank=rank, doing="waiting to resume")
        count = arena[rank, Word.ARRIVALS]
        late = [
            # Those of other hosts arrive here only once all of this host have.
            tuple(peer for peer in peers if arena[peer, Word.ARRIVALS] < count)
            for peers in (sorted(local), remote)
        ]
        waits_for = late[0] or late[1]
        if waits_for or phase is Phase.WAIT:  # else for the network, or within DDP
            return Activity(rank=rank, doing=describe(*barrier), waits_for=waits_for)
    if is_script and phase is Phase.FORWARD:
        return Activity(rank=rank, doing="running the script")
    return Activity(rank=rank, doing=_WORDS[phase].format(step=step, next=step + 1))
