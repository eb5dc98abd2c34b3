"""Resume: what an agent tells its workers, and the run's log, when a generation begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.agent.run_context import RunContext
from holdfast.agent.worker_handle import WorkerHandle
from holdfast.core.actions import ResumeWorkers
from holdfast.core.membership import by_host
from holdfast.core.protocol import Eviction
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.messages import ResumeMessage


def resume_message(
    action: ResumeWorkers, members: Mapping[int, str], key: str, restore: Iterable[str]
) -> ResumeMessage:
    """Message to every member.

    Args:
        action: Says where the generation begins.
        members: The host of every rank.
        key: Secret of the members.
        restore: The checkpoints of this host, newest first.
    """
    hosts = tuple(by_host(members).values())
    return ResumeMessage(
        hosts=hosts if len(hosts) > 1 else (),
        addresses=dict(action.addresses),
        key=key,
        generation=action.generation,
        members=tuple(sorted(members)),
        step=action.start.step,
        donors=dict(action.start.donors),
        restore=tuple(restore),
    )


def log_generation(
    log: EventLog,
    action: ResumeWorkers,
    members: Iterable[int],
    committed: int,
    workers: Iterable[WorkerHandle],
) -> None:
    """Log that a generation begins.

    Args:
        log: Log of the run.
        action: Says where it begins.
        members: All of them, by rank.
        committed: The most steps that a member of this host had committed.
        workers: All of this host.
    """
    halted_at = max((each.halted_at for each in workers if each.halted_at), default=None)
    log.event(
        "generation-started",
        number=action.generation,
        members=members,
        step=action.start.step,
        last_committed_step=committed,
        from_checkpoint=not action.start.donors,
        checkpoint=action.start.checkpoint,
        **({} if halted_at is None else {"halted_at": round(halted_at, 6)}),
    )


def log_standbys(
    workers: Iterable[WorkerHandle],
    standbys: Mapping[int, Eviction],
    step: int,
    log: EventLog,
    run: RunContext,
) -> None:
    """Log which workers go to standby with a generation, and which return from there.

    Args:
        workers: All of this host.
        standbys: The ranks that are on standby now, and why.
        step: From which the others resume.
        log: Log of the run.
        run: The run.
    """
    for worker in workers:
        before = worker.is_on_standby
        eviction = standbys.get(worker.rank)
        worker.is_on_standby = eviction is not None
        if eviction is not None and not before:
            reason = eviction.reason
            log.event("worker-evicted", **worker.named, step=step, reason=reason, **run.where)
        elif eviction is None and before:
            log.event("worker-returned", **worker.named, step=step, **run.where)
