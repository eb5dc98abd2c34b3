"""Strangers at the port of a node: they change nothing, and the node serves on."""

import socket
import ssl
from contextlib import closing, suppress

import pytest

from conftest import wait_until
from holdfast.coordinator.authority import Authority
from holdfast.runs.replication.node_connections import endpoint_of
from holdfast.wire.node_messages import Announcement, Envelope
from holdfast.wire.tls import Role
from nodes import STRANGER, Nodes, admitted, hosts_in, say

LINE = Envelope(sender=STRANGER, announcement=Announcement(term=99, address="evil:1")).line


@pytest.fixture
def nodes(tmp_path):
    with closing(Nodes(tmp_path)) as made:
        yield made


@pytest.fixture
def node(nodes, capfd, caplog):
    """A node that leads. In the end it serves still, knows nothing new, and has printed nothing."""
    made = nodes.begin()
    yield made
    assert made.coordinator == ""
    nodes.journal(made).admit(admitted("x"))
    assert hosts_in(made) == ["x"]
    say(nodes.agent(made), announcement=Announcement(term=9, address="honest:1"))
    wait_until(lambda: made.coordinator == "honest:1")
    made.close()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def is_hung_up(connection):
    """True once the node has ended a connection."""
    with suppress(ConnectionError, OSError):
        while connection.recv(1 << 16):
            pass
    return True


def test_one_without_tls_is_not_heard(node):
    with socket.create_connection(endpoint_of(node.name)) as connection:
        connection.sendall(LINE)
        assert is_hung_up(connection)


@pytest.mark.parametrize("whose", ["nobody", "other run", Role.DATA, Role.COORDINATOR])
def test_one_without_a_certificate_of_an_agent_of_the_run_is_not_heard(
    nodes, node, tmp_path, whose
):
    (tmp_path / "other").mkdir()
    other = Authority.create(tmp_path / "other")
    credentials = {
        "nobody": None,
        "other run": other.issue("x", Role.AGENT),
        Role.DATA: nodes.authority.issue("x", Role.DATA),
        Role.COORDINATOR: nodes.authority.coordinator,
    }
    connection = nodes.speaker(node, credentials[whose])
    with suppress(OSError):
        connection.sendall(LINE)
    assert is_hung_up(connection)


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish\n",
        b"\xff\xfe\n",
        b"{}\n",
        LINE.replace(b"}}", b'},"extra":1}'),
        LINE.replace(b"}}", b'},"timeout_now":{"term":100}}'),
        b'{"sender":"x"}\n',
    ],
)
def test_an_agent_that_sends_no_message_is_heard_no_more(nodes, node, line):
    connection = nodes.agent(node)
    with suppress(OSError):
        connection.sendall(line + LINE)
    assert is_hung_up(connection)


def test_an_endless_line_is_not_kept(nodes, monkeypatch):
    monkeypatch.setattr("holdfast.runs.replication.node_connections.MAX_LINE_BYTES", 1 << 16)
    node = nodes.begin()
    connection = nodes.agent(node)
    with suppress(ConnectionError, ssl.SSLError):
        while True:
            connection.sendall(bytes(1 << 16))
    nodes.journal(node).admit(admitted("x"))


def test_answers_to_a_name_that_is_no_address_go_nowhere(nodes, node):
    peer = nodes.agent(node)
    for sender in ("nowhere", "x@host:port", f"{'a' * 70}.é@x..y:1"):
        # A vote that is asked in an old term is answered.
        line = b'{"sender":"%s","request_vote":{"term":0,"last_index":0,"last_term":0}}\n'
        peer.sendall(line % sender.encode())
