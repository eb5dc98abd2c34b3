"""ReplicatedJournal: the journal of a run on several hosts, which a majority of them has in common.

    coordinator ── JournalRequest ──▶ node of this host ── log ──▶ nodes of other hosts
                ◀─ JournalAnswer ───

The node is in the command of this host, which outlives the coordinator. It keeps the journal in the
logs of the hosts (`core.consensus`) or in etcd (`runs.replication.etcd_node`). An entry is durable
once a majority of the voters has it, or etcd: a coordinator on another host takes over with all.

Entries. A run on one host needs only the decisions of its state machine. Here the journal also has
what a successor on another host needs: the secrets with which it lets hosts join, the hosts that
were let in, the nodes to tell where it is, and the hosts that take part, of which some vote.

Begin. A coordinator reads all entries. The node answers once those that are under way are
committed: an earlier coordinator of this host may have proposed them and ended.

Append. One request is under way at a time, and `append` returns with its answer. So no agent hears
of a decision that can still be lost. A request that changes the hosts names all of them: the node
chooses the voters from these.

Failures. If this process ends, the command starts another, which reads the same entries. If no
majority can be reached, a request waits. Once the node leads no longer, it closes the connection:
the request raises, and this process ends. If the host is lost, the node of another host is elected,
and `runs.hosts.succession` starts a coordinator there. The journal names the lost host as the
leader before, so that coordinator knows which agents were lost with it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Final, Self

from pydantic import ConfigDict, Field, ValidationError

from holdfast.core.actions import GenerationOpened, JournalEntry, RunEnded
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Message
from holdfast.wire.node_messages import JournalAnswer, JournalRequest

MAX_LOST_TOLD: Final = 32
"""Nodes of hosts that were lost or have not reported, and hear where a new coordinator is."""


class RunSecrets(Message):
    """The secrets of a start of a run: with them another host can let hosts join.

    Attributes:
        authority, coordinator: Credentials of the authority and of its coordinator, as JSON.
        generation_key: Secret from which the keys of generations are derived, hexadecimal.
    """

    authority: str = Field(repr=False)
    coordinator: str = Field(repr=False)
    generation_key: str = Field(repr=False)


class HostAdmitted(Message):
    """A host of another machine was let in.

    Attributes:
        host: The name that its agent got.
        keys: The SHA-256 of its requests for certificates, hexadecimal.
        token: The digest of the token with which it joined; empty if it joined again.
    """

    host: str
    keys: str
    token: str


class HostExpected(Message):
    """A host that was let in starts its agent: if the coordinator moves meanwhile, it is told.

    Attributes:
        host: The name of its agent.
        node: Its node.
    """

    host: str
    node: str


class HostsPresent(Message):
    """The hosts that take part.

    Attributes:
        nodes: The node of each, by the name of its agent.
        leader: The node of the host with the coordinator.
    """

    nodes: dict[str, str]
    leader: str


class JournalRecord(Message):
    """An entry of the journal; the other fields are None."""

    model_config = ConfigDict(hide_input_in_errors=True)

    decision: GenerationOpened | RunEnded | None = None
    admitted: HostAdmitted | None = None
    expected: HostExpected | None = None
    secrets: RunSecrets | None = None
    present: HostsPresent | None = None

    @property
    def encoded(self) -> str:
        """The entry as it is kept in the log."""
        return self.model_dump_json(exclude_none=True)


def records_in(encoded: Sequence[str]) -> list[JournalRecord]:
    """Entries of a log."""
    return [JournalRecord.model_validate_json(each) for each in encoded]


def told_nodes(records: Sequence[JournalRecord]) -> list[str]:
    """Nodes to tell where the coordinator is: those of hosts that take part, or are about to, and
    of some that were lost, and may only have been cut off.
    """
    nodes: dict[str, None] = {}  # the newest last
    present: Mapping[str, str] = {}
    for record in records:
        named = [record.expected.node] if record.expected is not None else []
        if record.present is not None:
            present = record.present.nodes
            named += present.values()
        for node in named:
            nodes.pop(node, None)
            nodes[node] = None
    return [*nodes][-len(present) - MAX_LOST_TOLD :]


class ReplicatedJournal:
    """The journal, as the coordinator of the leader's host uses it.

    Args:
        connection: To the node of this host.
        node: The name of that node.

    Raises:
        HoldfastError: This host leads no longer.
    """

    def __init__(self, connection: socket.socket, node: str) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")
        self._node = node
        self._present: dict[str, str] = {}
        self._entries = records_in(self._ask(JournalRequest()).entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._connection.close()

    def entries(self) -> list[JournalEntry]:
        """All entries of the coordinator's machine, oldest first."""
        return [each.decision for each in self._entries if each.decision is not None]

    def append(self, entry: JournalEntry) -> None:
        """Append `entry`; returns once a majority has it.

        Raises:
            HoldfastError: This host leads no longer.
        """
        self._append(JournalRecord(decision=entry))

    def admitted(self) -> list[HostAdmitted]:
        """All hosts that were let in, oldest first."""
        return [each.admitted for each in self._entries if each.admitted is not None]

    def admit(self, admitted: HostAdmitted) -> None:
        """Append that a host was let in; returns once a majority has that.

        Raises:
            HoldfastError: This host leads no longer.
        """
        self._append(JournalRecord(admitted=admitted))

    def expect(self, host: str, node: str) -> None:
        """Append the node of a host whose agent starts; returns once a majority has that.

        Raises:
            HoldfastError: This host leads no longer.
        """
        self._append(JournalRecord(expected=HostExpected(host=host, node=node)))

    def lost(self) -> list[str]:
        """The agents of the host that led before this one: it was lost, or it has left."""
        present = [each.present for each in self._entries if each.present is not None]
        # A coordinator that is started again on its host has lost no agent.
        if not present or present[-1].leader == self._node:
            return []
        return [agent for agent, node in present[-1].nodes.items() if node == present[-1].leader]

    def addresses(self) -> dict[str, str]:
        """Addresses at which the hosts that take part accept connections, by their agents."""
        present = [each.present for each in self._entries if each.present is not None]
        nodes = present[-1].nodes if present else {}
        return {agent: node.rpartition("@")[2] for agent, node in nodes.items()}

    def set_present(self, nodes: Mapping[str, str]) -> None:
        """Take note of the hosts that take part, of which some vote.

        Args:
            nodes: The node of each, by the name of its agent, in the order in which they joined.

        Raises:
            HoldfastError: This host leads no longer.
        """
        # Nothing is noted at first, so a new coordinator always names its host as the leader.
        if nodes != self._present:
            self._present = dict(nodes)
            present = HostsPresent(nodes=self._present, leader=self._node)
            self._append(JournalRecord(present=present), hosts=self._present)

    def _append(self, entry: JournalRecord, hosts: dict[str, str] | None = None) -> None:
        self._ask(JournalRequest(append=entry.encoded, hosts=hosts))
        self._entries.append(entry)

    def _ask(self, request: JournalRequest) -> JournalAnswer:
        """Ask the node, which answers or ends the connection: the command bounds the wait."""
        try:
            self._connection.sendall(request.model_dump_json().encode() + b"\n")
            return JournalAnswer.model_validate_json(self._answers.readline())
        except (OSError, ValidationError):
            raise HoldfastError(
                "this host does not lead the run any more: another one coordinates it, or most of "
                "the others cannot be reached"
            ) from None
