"""Nodes for tests: real ones of one run, in this process or another, and who speaks to them."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from conftest import wait_until
from holdfast.coordinator.authority import Authority
from holdfast.coordinator.replicated_journal import HostAdmitted, ReplicatedJournal, records_in
from holdfast.runs.replication.node import ConsensusNode
from holdfast.runs.replication.node_connections import endpoint_of
from holdfast.wire.node_messages import Envelope
from holdfast.wire.tls import Credentials, Role, pinned_context

STRANGER = "0123456789abcdef@127.0.0.1:1"
"""Name of a node that is nowhere."""
PROCESS = Path(__file__).with_name("node_process.py")


class Nodes:
    """Nodes of one run, until `close`.

    Attributes:
        authority: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder)
        self.owned = ExitStack()

    def begin(self, address: str = "127.0.0.1") -> ConsensusNode:
        """The node of the host that begins the run."""
        return self._start(address, begins=True)

    def join(self, address: str = "127.0.0.1") -> ConsensusNode:
        """The node of another host."""
        return self._start(address, begins=False)

    def three(self) -> tuple[list[ConsensusNode], ReplicatedJournal]:
        """Three nodes that vote, of which the first leads, and its journal."""
        made = [self.begin(), self.join(), self.join()]
        journal = self.journal(made[0])
        journal.set_present(dict(zip("abc", (node.name for node in made), strict=True)))
        wait_until(lambda: all(len(voters_of(node)) == 3 for node in made))
        return made, journal

    def journal(self, node: ConsensusNode) -> ReplicatedJournal:
        """The journal as a coordinator of this node's host has it."""
        near, far = socket.socketpair()
        self.owned.callback(far.close)
        node.serve_journal(near)
        return self.owned.enter_context(ReplicatedJournal(far, node.name))

    def speaker(self, node: ConsensusNode, credentials: Credentials | None) -> socket.socket:
        """A TLS connection to a node, of whoever has these credentials."""
        connection = socket.create_connection(endpoint_of(node.name))
        connection.settimeout(60)
        context = pinned_context(credentials)
        return self.owned.enter_context(context.wrap_socket(connection))

    def agent(self, node: ConsensusNode) -> socket.socket:
        """A TLS connection to a node, of an agent of the run."""
        return self.speaker(node, self.authority.issue("peer", Role.AGENT))

    def close(self) -> None:
        """End all of them."""
        self.owned.close()

    def _start(self, address: str, *, begins: bool) -> ConsensusNode:
        node = ConsensusNode(address, self.authority.issue("a", Role.AGENT), begins=begins)
        self.owned.callback(node.close)
        node.start()
        return node


class NodeProcess:
    """Two nodes in a process of their own, which can be stopped.

    Attributes:
        names: The names of the nodes.
        process: The process.
    """

    def __init__(self, nodes: Nodes) -> None:
        credentials = nodes.authority.issue("b", Role.AGENT).model_dump_json()
        words = [sys.executable, PROCESS, credentials]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        nodes.owned.callback(self.close)
        self.names = json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()


def voters_of(node: ConsensusNode) -> tuple[str, ...]:
    """The voters, once no change of them is under way as far as a node knows."""
    machine = node._machine
    return machine.log.voters if machine.commit_index == machine.log.last_index else ()


def admitted(host: str) -> HostAdmitted:
    """An entry for a journal."""
    return HostAdmitted(host=host, keys="", token="")


def hosts_in(node: ConsensusNode) -> list[str]:
    """The hosts that were admitted, as far as a node knows."""
    return [each.admitted.host for each in records_in(node.entries) if each.admitted]


def say(connection: socket.socket, **message: object) -> None:
    """Send a message to a node."""
    connection.sendall(Envelope(**{"sender": STRANGER, **message}).line)
