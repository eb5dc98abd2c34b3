"""Actions that the state machines ask their shells to perform, and the journal's entries.

A shell performs the actions of an event in order. An action that takes time has an event as its
answer, which may come much later:

    ForkWorker, KillWorker      WorkerExited, at the end of the process
    ProbeHost                   ProbeCompleted
    FindCheckpoint              CheckpointFound
    PrepareCheckpoint           CheckpointPrepared
    CompleteCheckpoint          CheckpointCompleted
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.protocol import (
    Cap,
    CheckpointPart,
    CheckpointResult,
    DesiredState,
    Failure,
    Probe,
    ResumePoint,
    Standby,
    Status,
)

# Entries of the journal: what a successor of the coordinator cannot learn from statuses.


@dataclass(frozen=True, slots=True)
class GenerationOpened:
    """A generation was opened.

    Attributes:
        generation: Its number.
        members: The host of every rank.
        restart_all: True if all its workers are forked again.
        standbys: The ranks on standby meanwhile.
        caps: The ranks that have run out of memory.
        scaled: Workers of a full world since the run was scaled; 0 if it never was.
    """

    generation: int
    members: Mapping[int, str]
    restart_all: bool = False
    standbys: Mapping[int, Standby] = field(default_factory=dict)
    caps: Mapping[int, Cap] = field(default_factory=dict)
    scaled: int = 0


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over.

    Attributes:
        reason: Cause, if it failed.
        root_cause: The rank that failed last, and how, if that was why.
        result: Result of the run as a worker reports it, if all have finished.
    """

    reason: str
    root_cause: tuple[int, Failure] | None = None
    result: Mapping[str, Any] | None = None


JournalEntry = GenerationOpened | RunEnded


# Actions of the coordinator.


@dataclass(frozen=True, slots=True)
class AppendToJournal:
    """Make an entry durable before any later action is performed."""

    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class SendDesiredState:
    """Send an agent its desired state."""

    host: str
    desired: DesiredState


@dataclass(frozen=True, slots=True)
class ProbeHost:
    """Look whether a host accepts connections; `ProbeCompleted` is its result."""

    probe: Probe


@dataclass(frozen=True, slots=True)
class RefuseHost:
    """Tell an agent that its host cannot take part, now or later.

    Attributes:
        reason: Cause, in words.
    """

    host: str
    reason: str


RunAction = AppendToJournal | SendDesiredState | ProbeHost | RefuseHost


# Actions of an agent.


@dataclass(frozen=True, slots=True)
class Abort:
    """Wake all workers that wait: generations before this one are over.

    Attributes:
        forgets: True if nothing may continue from what lost workers have left on this host.
    """

    generation: int
    forgets: bool = False


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Fork a worker, which halts in `generation`; `WorkerExited` names it by `process`."""

    rank: int
    generation: int
    process: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker process."""

    rank: int
    process: int


@dataclass(frozen=True, slots=True)
class ResumeWorkers:
    """Let the halted workers resume.

    Attributes:
        addresses: Addresses at which members accept connections of other hosts, by rank.
    """

    generation: int
    start: ResumePoint
    addresses: Mapping[int, str] = field(default_factory=dict)


# Of these the disk decides how long they take. They are performed in their order, apart from all
# others.


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Publish what earlier generations have staged, and find the newest readable checkpoint of this
    host; `CheckpointFound` is its result.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class RemovePartialCheckpoints:
    """Publish what earlier generations have staged, and remove what they left unfinished."""

    generation: int


@dataclass(frozen=True, slots=True)
class PrepareCheckpoint:
    """Write the parts of this host durably as a draft; `CheckpointPrepared` is its result."""

    generation: int
    parts: Mapping[int, CheckpointPart]


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """Publish the draft of this host, or discard it if the checkpoint has failed;
    `CheckpointCompleted` is its result.
    """

    result: CheckpointResult


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Keep a checkpoint in the memory where it is staged, in place of the one before."""

    generation: int
    number: int


CheckpointAction = (
    FindCheckpoint
    | RemovePartialCheckpoints
    | PrepareCheckpoint
    | CompleteCheckpoint
    | KeepSnapshot
)


@dataclass(frozen=True, slots=True)
class SendCheckpointResult:
    """Send the workers what became of their checkpoint on this host."""

    result: CheckpointResult


@dataclass(frozen=True, slots=True)
class RequestSave:
    """Ask the workers for a checkpoint after the current step; see `DesiredState`."""

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Ask the workers to end after the current step."""


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Send the coordinator the agent's status."""

    status: Status


@dataclass(frozen=True, slots=True)
class ShutDownAgent:
    """End the agent; its workers were killed, or have finished and exit by themselves."""

    reason: str


AgentAction = (
    Abort
    | ForkWorker
    | KillWorker
    | ResumeWorkers
    | CheckpointAction
    | SendCheckpointResult
    | RequestSave
    | RequestStop
    | SendStatus
    | ProbeHost
    | ShutDownAgent
)
