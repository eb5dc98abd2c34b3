"""ConsensusNode: the part of one host in the consensus of its run.

    node ◀── messages over TLS ──▶ nodes of other hosts
     ▲ └── leads, coordinator ───▶ command of this host, which starts and ends a coordinator
     └──── journal, hosts ─────── coordinator of this host, while this node leads

It drives a `ConsensusStateMachine` in a thread of the command, so its log lives as long as the
command: agents, workers and coordinators may end under it. A command that is started again has a
node with another name.

A follower whose leader falls silent looks first whether the leader's host accepts connections. If
it does, the leader is slow, and gets `SLOW_LIMIT_S`: an election would cost the run a recovery.

Entries. The coordinator's entry is proposed to the machine, and answered once that has committed
it. A node that steps down forgets what it has proposed. Whether that is committed is for the next
leader to find out, and the coordinator that has asked is ended.

Hosts. The machine gets the nodes of the hosts that take part with the coordinator's journal, and
chooses the voters from them. Connections to all others are closed.

Announcement. Hosts that take part hear of a new leader by its messages, but not where its
coordinator listens. So the leader sends the address to all nodes that may need it, again and again
until their hosts have reported to that coordinator. One of an older term is ignored.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.core.consensus.consensus import ConsensusStateMachine, ElectionRole
from holdfast.core.consensus.messages import (
    AppendEntries,
    BecameLeader,
    Committed,
    ConsensusAction,
    ConsensusEvent,
    HostEnded,
    HostsChanged,
    MessageReceived,
    Propose,
    SendMessage,
    SteppedDown,
    TransferRequested,
)
from holdfast.core.events import Tick
from holdfast.runs.replication.host_node import Node
from holdfast.runs.replication.node_connections import Connections, endpoint_of
from holdfast.wire.node_messages import Announcement, Envelope, envelope
from holdfast.wire.probe import accepts
from holdfast.wire.tls import Credentials

ELECTION_S: Final = 0.8
"""Election timeout: a silence of the leader that is never suspected, seconds."""
SLOW_LIMIT_S: Final = 10.0
"""Silence of a leader whose host accepts connections, seconds."""
QUORUM_S: Final = 600.0
"""Time that a leader waits for a majority. Until then it decides nothing, and may get it back."""
ANNOUNCE_S: Final = 0.5
"""Interval at which hosts that have not connected yet are told where the coordinator is."""


class ConsensusNode(Node):
    """The node of this host, from `start` to `close`.

    Args:
        address: Address of this host at which nodes of other hosts reach it.
        credentials: The agent's.
        begins: True if this host begins the run: it leads at once.
    """

    def __init__(self, address: str, credentials: Credentials, *, begins: bool) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        super().__init__(f"{secrets.token_hex(8)}@{address}:{listener.getsockname()[1]}")
        self._machine = ConsensusStateMachine(
            self.name,
            voters=(self.name,) if begins else (),
            election_s=ELECTION_S,
            quorum_s=QUORUM_S,
            now=time.monotonic(),
        )
        self._leader = ""  # the newest other one that was heard
        self._leader_term = 0
        self._heard_at = -math.inf
        self._announced_term = 0
        # A future is done when its entry is committed, not when it is appended.
        self._proposed: dict[int, asyncio.Future[None]] = {}  # by the index of the entry
        self._due = asyncio.Event()
        self._connections = Connections(
            listener, credentials, self._on_envelope, self._on_ended, self._spawn
        )
        if begins:  # it votes alone, so nothing is sent
            self._tell(Tick())

    def append(self, entry: str) -> None:
        """Append an entry to the journal, if this host leads; does not wait until it has."""
        self._call(lambda: self._append(entry))

    def announce(self, address: str, told: Iterable[str]) -> None:
        """Implements `Node.announce`."""
        nodes = {*told} - {self.name}
        self._call(lambda: self._announce(address, nodes))

    def leave(self) -> None:
        """Implements `Node.leave`."""
        self._call(self._leave)

    # In the thread.

    async def _open(self) -> None:
        await self._connections.open()
        self._spawn(self._keep_time())

    async def _end(self) -> None:
        self._connections.close()

    async def _append(self, entry: str) -> None:
        self._propose(entry)

    async def _leave(self) -> None:
        self._tell(TransferRequested())

    def _tell(self, event: ConsensusEvent) -> None:
        for action in self._machine.handle(event, time.monotonic()):
            self._perform(action)
        self._due.set()

    def _perform(self, action: ConsensusAction) -> None:
        match action:
            case SendMessage(to, message):
                self._connections.send(to, envelope(self.name, message))
            case Committed(index, entry):
                self._on_committed(index, entry.payload)
            case BecameLeader():
                self._set_leads(leads=True)
            case SteppedDown():
                self._proposed.clear()
                self._set_leads(leads=False)

    def _on_committed(self, index: int, entry: str | None) -> None:
        if entry is not None:
            self.entries = (*self.entries, entry)
            self._notify()
        waiting = self._proposed.pop(index, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _on_envelope(self, received: Envelope) -> None:
        if received.announcement is not None:
            self._on_announced(received.announcement)
        message = received.message
        if message is None:
            return
        self._tell(MessageReceived(received.sender, message))
        # Only the leader of a term sends this; of an older term the machine has refused it.
        if isinstance(message, AppendEntries) and message.term == self._machine.term:
            self._leader = received.sender
            self._leader_term = message.term
            self._heard_at = time.monotonic()

    def _on_announced(self, announcement: Announcement) -> None:
        # A leader of an older term than the newest that is known has no say any more.
        if announcement.term > self._announced_term and announcement.term >= self._machine.term:
            self._announced_term = announcement.term
            self.coordinator = announcement.address
            self._notify()

    def _on_ended(self, node: str) -> None:
        self._tell(HostEnded(node))

    async def _keep_time(self) -> None:
        """Tell the machine when a deadline has passed."""
        while True:
            self._due.clear()
            due = self._machine.next_deadline()
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            if await self._happens_within(wait_s):
                continue
            # The machine starts an election with this tick, unless there is a reason to wait.
            if await self._leader_is_slow():
                await self._happens_within(ELECTION_S / 2)
            else:
                self._tell(Tick())

    async def _happens_within(self, wait_s: float | None) -> bool:
        """True once the machine has handled something; False if that takes longer."""
        try:
            async with asyncio.timeout(wait_s):
                await self._due.wait()
        except TimeoutError:
            return False
        return True

    async def _leader_is_slow(self) -> bool:
        """True if a leader that is silent is not lost, as far as this host sees."""
        silent_s = time.monotonic() - self._heard_at
        is_led = self._leader_term == self._machine.term  # else an election is under way
        if self._machine.role is ElectionRole.LEADER or not is_led or silent_s > SLOW_LIMIT_S:
            return False
        try:
            host, port = endpoint_of(self._leader)
            is_there = await self._loop.run_in_executor(None, accepts, f"{host}:{port}")
        except (OSError, ValueError):  # its name cannot be resolved any more
            is_there = False
        # It may have been heard meanwhile.
        return is_there or time.monotonic() - self._heard_at < ELECTION_S

    async def _announce(self, address: str, nodes: set[str]) -> None:
        if not self._leads:  # nor does it know where the coordinator is
            return
        term = self._announced_term = self._machine.term
        self.coordinator = address
        announcement = Announcement(term=term, address=address)
        while self.leads and self._machine.term == term:
            for node in nodes.difference(self._hosts.values()):
                self._connections.send(node, Envelope(sender=self.name, announcement=announcement))
            await asyncio.sleep(ANNOUNCE_S)

    # The journal.

    async def _commit(self, entry: str) -> None:
        await self._propose(entry)

    async def _settle(self) -> None:
        if self._proposed:
            await asyncio.wait(self._proposed.values())

    def _propose(self, entry: str) -> asyncio.Future[None]:
        """Propose an entry; the result is there once it is committed."""
        committed = self._loop.create_future()
        if self._leads:
            self._proposed[self._machine.log.last_index + 1] = committed
            self._tell(Propose(entry))
        return committed

    def _on_hosts(self, hosts: Mapping[str, str]) -> None:
        super()._on_hosts(hosts)
        nodes = tuple(dict.fromkeys(hosts.values()))
        self._connections.keep(nodes)
        self._tell(HostsChanged(nodes))
