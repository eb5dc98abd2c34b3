"""Ends of a node: it leaves nothing behind, and one that fails says so."""

import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.core.consensus.messages import AppendEntries
from holdfast.errors import HoldfastError
from holdfast.runs.replication.node import ConsensusNode
from holdfast.runs.replication.node_connections import endpoint_of
from holdfast.wire.tls import Role
from nodes import STRANGER, Nodes, admitted, hosts_in, say

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path):
    with closing(Nodes(tmp_path)) as made:
        yield made


def open_files():
    """The descriptors of this process."""
    return [*Path("/proc/self/fd").iterdir()]


@pytest.fixture
def nothing_left(nodes, capfd, caplog):
    """In the end all nodes end, and leave no thread, no descriptor and no word."""
    gc.collect()
    before = (threading.active_count(), len(open_files()))
    yield
    nodes.close()
    wait_until(lambda: (threading.active_count(), len(open_files())) == before)
    gc.collect()  # tasks that nobody has awaited complain now
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.usefixtures("nothing_left")
def test_a_node_that_was_never_started_ends(nodes):
    for begins in (True, False):
        credentials = nodes.authority.issue("a", Role.AGENT)
        node = ConsensusNode("127.0.0.1", credentials, begins=begins)
        node.close()
        node.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_node_that_follows_nobody_ends(nodes):
    nodes.join().close()


@pytest.mark.usefixtures("nothing_left")
def test_nodes_end_in_the_midst_of_their_work(nodes):
    made, journal = nodes.three()
    silent = nodes.owned.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = silent.getsockname()[1]
    made[0].announce("host:1", [f"{1:016x}@127.0.0.1:{port}", STRANGER])
    for node in made:  # of whom it knows nothing yet
        connection = socket.create_connection(endpoint_of(node.name))
        nodes.owned.enter_context(connection)
        nodes.agent(node)
    for number in range(20):
        journal.admit(admitted(str(number)))
    silent.accept()[0].close()
    wait_until(lambda: len(hosts_in(made[1])) == 20)
    for node in made:
        node.close()
    with pytest.raises(HoldfastError, match="does not lead"):
        journal.admit(admitted("x"))


@pytest.mark.usefixtures("nothing_left")
def test_a_node_ends_while_it_is_called(nodes):
    # Whatever the moment is in which it ends, nothing that it was given hangs.
    for _ in range(10):
        node = nodes.begin()
        journal = nodes.journal(node)
        with ThreadPoolExecutor(2) as pool:
            ended = pool.submit(node.close)
            appended = pool.submit(append_for_ever, journal)
            node.append("{}")
            node.announce("host:1", [STRANGER])
            wait([ended, appended], 60)
            ended.result(0)
            with pytest.raises(HoldfastError, match="does not lead"):
                appended.result(0)
        journal.__exit__()


def append_for_ever(journal):
    while True:
        journal.admit(admitted("x"))


def test_a_node_that_has_ended_serves_no_journal(nodes):
    node = nodes.begin()
    node.close()
    with pytest.raises(HoldfastError, match="does not lead"):
        nodes.journal(node)


def test_a_follower_serves_no_journal(nodes):
    with pytest.raises(HoldfastError, match="does not lead"):
        nodes.journal(nodes.join())


def test_a_node_that_fails_leads_no_longer_and_says_so(nodes, monkeypatch):
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    node = nodes.begin()
    journal = nodes.journal(node)
    node.take_news()
    # Two leaders of one term can only be a bug.
    term = node._machine.term
    message = AppendEntries(
        term=term, previous_index=0, previous_term=0, entries=(), commit_index=0, sent_at=0.0
    )
    say(nodes.agent(node), append_entries=message)
    wait_until(lambda: not node.leads)
    with pytest.raises(HoldfastError, match="report this bug"):
        wait_until(node.take_news)
    with pytest.raises(HoldfastError, match="does not lead"):
        journal.admit(admitted("x"))
    with pytest.raises(ConnectionRefusedError):
        nodes.agent(node)
    node.close()
    (failure,) = failures
    assert "one leader" in str(failure.exc_value)
