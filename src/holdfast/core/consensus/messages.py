"""Messages between the hosts of a consensus, its events and its actions.

    candidate ── RequestVote ────▶ voter
              ◀─ Vote ────────────
    leader ── AppendEntries ─────▶ voter, or a host that becomes one
           ◀─ EntriesAppended ────
           ── TimeoutNow ────────▶ voter that takes over

A message may be lost, delayed, repeated or overtaken. Each has the term of its sender; one of an
older term is answered by a `Vote` with the newer one.

`BecameLeader` begins the coordinator of a host, and `SteppedDown` ends it. In between it proposes
its decisions (`Propose`), performs each once it is `Committed`, and says which hosts are alive
(`HostsChanged`).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.consensus.log import ReplicatedEntry
from holdfast.core.events import Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote:
    """A candidate asks for a vote.

    Attributes:
        term: Term that it wants to lead.
        last_index, last_term: Index and term of the newest entry of its log.
        is_pre: True if it only asks whether it would get the vote.
        is_transfer: True if the leader has asked it to take over.
    """

    term: int
    last_index: int
    last_term: int
    is_pre: bool = False
    is_transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The answer to `RequestVote`, or to any message of an older term.

    Attributes:
        term: Term of the request if the vote is granted; else that of the voter.
        is_pre: True if the request only asked whether it would be granted.
    """

    term: int
    is_granted: bool
    is_pre: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """The leader sends entries, or none as a heartbeat.

    Attributes:
        previous_index, previous_term: Index and term of the entry before the first of these.
        commit_index: The newest entry that is committed.
        sent_at: The leader's clock, seconds.
    """

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[ReplicatedEntry, ...]
    commit_index: int
    sent_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesAppended:
    """The answer to `AppendEntries`.

    Attributes:
        match_index: An index up to which the log is that of the leader.
        sent_at: That of the message which this answers.
    """

    term: int
    match_index: int
    sent_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """The leader asks a voter to take over, as if its election timeout had passed."""

    term: int


ConsensusMessage = RequestVote | Vote | AppendEntries | EntriesAppended | TimeoutNow


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message has come from another host."""

    sender: str
    message: ConsensusMessage


@dataclass(frozen=True, slots=True)
class Propose:
    """The coordinator of this host wants to record a decision.

    `Committed` follows if this host keeps its majority. If it steps down first, a successor may
    commit the entry, or drop it. A host that does not lead drops it at once.
    """

    payload: str


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """The coordinator of this host knows the live hosts, in the order in which they joined."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostEnded:
    """The process of a host has ended, and with it its log and its votes. It never returns."""

    host: str


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """This host leaves the run: another one must lead."""


ConsensusEvent = MessageReceived | Propose | HostsChanged | HostEnded | TransferRequested | Tick


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to another host, or drop it if there is no connection."""

    to: str
    message: ConsensusMessage


@dataclass(frozen=True, slots=True)
class Committed:
    """An entry is final. A host that has the log gets all entries, in order."""

    index: int
    entry: ReplicatedEntry


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Begin to coordinate: this host has all decisions of earlier terms."""

    term: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """End the coordinator of this host before it does anything else."""

    term: int


ConsensusAction = SendMessage | Committed | BecameLeader | SteppedDown
