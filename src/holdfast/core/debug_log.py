"""Debug log: the newest events of a coordinator, and the actions that its machine returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.core.actions import (
    AppendToJournal,
    GenerationOpened,
    JournalEntry,
    ProbeHost,
    RefuseHost,
    RunAction,
    RunEnded,
    SendDesiredState,
)
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProbeCompleted,
    RunEvent,
    ScaleRequested,
    StatusReceived,
    StopReceived,
    Tick,
)
from holdfast.core.protocol import CheckpointResult, DesiredState, Draft, Stage, Status

MAX_ENTRIES: Final = 4_000
"""Most events that are kept."""

TRANSITIONS: Final = {
    Stage.IDLE: {
        StatusReceived: {Stage.HALT, Stage.RUN, Stage.END},
        AgentLost: {Stage.HALT},
        StopReceived: {Stage.END},
        ScaleRequested: {Stage.HALT},
        Tick: {Stage.HALT, Stage.END},
    },
    Stage.HALT: {
        StatusReceived: {Stage.RUN, Stage.END},
        AgentLost: {Stage.END},
        StopReceived: {Stage.END},
        Tick: {Stage.END},
    },
    Stage.RUN: {
        StatusReceived: {Stage.HALT, Stage.END},
        AgentLost: {Stage.HALT, Stage.END},
        StopReceived: {Stage.END},
        ScaleRequested: {Stage.HALT},
        Tick: {Stage.HALT, Stage.END},
    },
    Stage.END: {},
}
"""The stages that events can lead to from each stage; every event can also leave the stage as it
is. HALT leads to HALT by a new generation. This log and a test hold the machine to the table.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """An event and its result.

    Attributes:
        now: Time at which it was handled, monotonic seconds of the coordinator.
        event: The event.
        generation, stage: The machine's after it.
        actions: Actions that the machine returned.
    """

    now: float
    event: RunEvent
    generation: int
    stage: Stage
    actions: tuple[RunAction, ...]


class DebugLog:
    """Handles events with a machine and records them.

    Args:
        machine: Not used by others from now on, except to read it.
        most: Most events that are kept.

    Attributes:
        machine: The machine.
        entries: The newest events, oldest first.
        error: Exception of the machine at the last of them; empty if it raised none.
    """

    def __init__(self, machine: CoordinatorStateMachine, most: int = MAX_ENTRIES) -> None:
        self.machine = machine
        self.entries = deque[LogEntry](maxlen=most)
        self.error = ""

    def handle(self, event: RunEvent, now: float) -> list[RunAction]:
        """Let the machine handle an event; returns what is to be done, in order.

        Raises:
            Exception: The machine failed, or an invariant does not hold. The event is recorded as
                the last one.
        """
        before = self.machine.stage
        actions = list[RunAction]()
        try:
            actions = self.machine.handle(event, now)
            # Most events change nothing, so the invariants are not checked after them: they have no
            # action, or one that repeats the desired state of an agent.
            repeats = len(actions) == 1 and isinstance(actions[0], SendDesiredState)
            if (actions and not repeats) or self.machine.stage != before:
                check(self.machine, before, event)
        except Exception as error:
            self.error = repr(error)
            raise
        finally:
            self.entries.append(
                LogEntry(
                    now=now,
                    event=event,
                    generation=self.machine.generation,
                    stage=self.machine.stage,
                    actions=tuple(actions),
                )
            )
        return actions

    def in_words(self) -> Iterator[str]:
        """A line an event: seconds since the oldest, stage, event, and below it the actions."""
        for entry in self.entries:
            since = entry.now - self.entries[0].now
            where = f"{entry.stage.name} {entry.generation}"
            yield f"{since:12.3f}  {where:<10}  {event_in_words(entry.event)}"
            yield from (f"{'':26}→ {action_in_words(action)}" for action in entry.actions)
        if self.error:
            yield f"{'':14}the state machine failed: {self.error}"


def check(machine: CoordinatorStateMachine, before: Stage, event: RunEvent) -> None:
    """Check a machine that was at stage `before` when it handled an event.

    Raises:
        AssertionError: An invariant does not hold, or the transition is not in the table.
    """
    name = type(event).__name__
    now = machine.stage
    allowed = TRANSITIONS[before].get(type(event), ())
    assert now == before or now in allowed, f"{name} led from {before.name} to {now.name}"
    machine.check_invariants()


def event_in_words(event: RunEvent) -> str:
    """An event on one line."""
    match event:
        case StatusReceived(status):
            return f"{status.host} reports {status_in_words(status)}"
        case Disconnected(host):
            return f"{host} is disconnected"
        case AgentLost(host):
            return f"{host} is lost"
        case ProbeCompleted(number, is_reached):
            return f"probe {number} was {'accepted' if is_reached else 'not answered'}"
        case _:
            return type(event).__name__


def action_in_words(action: RunAction) -> str:
    """An action on one line."""
    match action:
        case AppendToJournal(entry):
            return _entry_in_words(entry)
        case SendDesiredState(host, desired):
            return f"ask {host} for {_desired_in_words(desired)}"
        case RefuseHost(host, reason):
            return f"refuse {host}: {reason}"
        case ProbeHost(probe):
            return f"probe {probe.host} at {probe.address} (probe {probe.number})"


def _entry_in_words(entry: JournalEntry) -> str:
    match entry:
        case GenerationOpened():
            how = ", all restart" if entry.restart_all else ""
            how += f", standbys {list(entry.standbys)}" if entry.standbys else ""
            how += "".join(f", rank {r} capped at {c.shards}" for r, c in entry.caps.items())
            members = ", ".join(f"{rank}: {host}" for rank, host in entry.members.items())
            return f"record generation {entry.generation} {{{members}}}{how}"
        case RunEnded():
            return f"record the end{f': {entry.reason}' if entry.reason else ''}"


def status_in_words(status: Status) -> str:
    """An agent's report, on one line."""
    failed = [
        f"rank {rank} {failure.cause}{' (cascading)' if failure.is_cascading else ''}"
        for rank, failure in status.failed.items()
    ]
    committed = ", ".join(f"{rank}: {steps}" for rank, steps in status.committed.items())
    facts = [
        f"{status.stage.name} in generation {status.generation}",
        *([f"capacity {status.capacity}"] if status.stage == Stage.IDLE else []),
        *failed,
        *([f"rank {status.eviction.rank} must go to standby"] if status.eviction else []),
        *([f"fit {sorted(status.fit)}"] if status.fit else []),
        *([f"committed {committed}"] if committed else []),
        *([f"left {dict(status.left)}"] if status.left else []),
        *([f"reduced step {status.reduced_step}"] if status.reduced_step else []),
        *([f"finished {sorted(status.finished)}"] if status.finished else []),
        *([f"has {status.newest_checkpoint.name}"] if status.newest_checkpoint else []),
        *([_draft_in_words(status.draft)] if status.draft else []),
        *(["lost a checkpoint"] if status.lost_checkpoint else []),
        *(["stopping"] if status.stop else []),
    ]
    return ", ".join(facts)


def _desired_in_words(desired: DesiredState) -> str:
    facts = [
        f"{desired.stage.name} in generation {desired.generation}",
        *([f"ranks {list(desired.ranks)}"] if desired.ranks else []),
        *([f"standbys {list(desired.standbys)}"] if desired.standbys else []),
        *([f"from step {desired.resume_point.step}"] if desired.resume_point else []),
        *(["all restarted"] if desired.restart_all and desired.stage == Stage.HALT else []),
        *([f"checkpoint {desired.requested_checkpoint}"] if desired.requested_checkpoint else []),
        *([_result_in_words(desired.checkpoint_result)] if desired.checkpoint_result else []),
        *(["stop"] if desired.stop else []),
        *([desired.reason] if desired.reason else []),
    ]
    return ", ".join(facts)


def _result_in_words(result: CheckpointResult) -> str:
    how = f"failed: {result.error}" if result.error else "committed"
    return f"checkpoint of step {result.step} {how}"


def _draft_in_words(draft: Draft) -> str:
    how = f"not written: {draft.error}" if draft.error else "written"
    return f"checkpoint of step {draft.step} {how}"
