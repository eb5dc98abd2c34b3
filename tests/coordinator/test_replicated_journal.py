"""The journal that hosts have in common, as coordinators use it one after the other."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from conftest import wait_until
from holdfast.coordinator.replicated_journal import (
    JournalRecord,
    ReplicatedJournal,
    RunSecrets,
    records_in,
)
from holdfast.core.actions import GenerationOpened, RunEnded
from holdfast.core.consensus.messages import Vote
from holdfast.errors import HoldfastError
from nodes import STRANGER, Nodes, admitted, hosts_in, say

OPENED = [GenerationOpened(number, {0: "a", 1: "b"}) for number in range(3)]


@pytest.fixture
def nodes(tmp_path):
    with closing(Nodes(tmp_path)) as made:
        yield made


def test_a_coordinator_that_is_started_again_finds_all_entries(nodes):
    node = nodes.begin()
    with nodes.journal(node) as journal:
        assert journal.entries() == []
        assert journal.admitted() == []
        journal.append(OPENED[0])
        journal.admit(admitted("b"))
        journal.append(OPENED[1])
        journal.append(RunEnded("done"))
        found = (journal.entries(), journal.admitted())
    successor = nodes.journal(node)
    assert successor.entries() == [*OPENED[:2], RunEnded("done")]
    assert successor.admitted() == [admitted("b")]
    assert found == (successor.entries(), successor.admitted())


def test_two_coordinators_that_append_the_same_at_once_are_both_answered(nodes):
    node = nodes.begin()
    journals = [nodes.journal(node) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            list(pool.map(lambda journal: journal.admit(admitted("x")), journals))
    assert hosts_in(node) == 100 * ["x"]


def test_no_host_is_lost_while_the_same_one_leads(nodes):
    node = nodes.begin()
    with nodes.journal(node) as journal:
        assert journal.lost() == []
        journal.set_present({"a": node.name, "b": STRANGER})
        assert journal.lost() == []
    assert nodes.journal(node).lost() == []


def test_the_agents_of_the_leaders_host_are_lost_until_the_next_one_has_written_who_is_there(nodes):
    before = f"{2:016x}@127.0.0.1:1"
    node = nodes.begin()
    near, far = socket.socketpair()
    node.serve_journal(near)
    with ReplicatedJournal(far, before) as journal:  # as if that had led
        journal.set_present({"a": before, "again": before, "b": node.name})
    with nodes.journal(node) as journal:
        assert journal.lost() == ["a", "again"]
    with nodes.journal(node) as journal:  # it has ended before it has written anything
        assert journal.lost() == ["a", "again"]
        journal.set_present({"b": node.name})
        assert journal.lost() == []
    assert nodes.journal(node).lost() == []


def test_who_is_there_is_written_once(nodes):
    node = nodes.begin()
    journal = nodes.journal(node)
    for _ in range(3):
        journal.set_present({"a": node.name})
    assert len(node.entries) == 1


def test_a_node_that_steps_down_or_ends_takes_no_entries(nodes):
    node = nodes.begin()
    journal = nodes.journal(node)
    journal.append(OPENED[0])
    say(nodes.agent(node), vote=Vote(term=99, is_granted=False))
    wait_until(lambda: node._machine.term >= 99)
    with pytest.raises(HoldfastError, match="does not lead"):
        journal.append(OPENED[1])
    wait_until(lambda: node.leads)
    successor = nodes.journal(node)
    node.close()
    with pytest.raises(HoldfastError, match="does not lead"):
        successor.append(OPENED[1])


def test_a_coordinator_that_speaks_no_request_is_not_served(nodes):
    node = nodes.begin()
    for line in (b"rubbish\n", b'{"append":1}\n', b'{"extra":1}\n'):
        near, far = socket.socketpair()
        node.serve_journal(near)
        with far:
            far.sendall(line)
            assert far.recv(1) == b""
    nodes.journal(node).append(OPENED[0])


def test_secrets_are_in_no_error_and_no_representation():
    secrets = RunSecrets(authority="hush", coordinator="hush", generation_key="hush")
    record = JournalRecord(secrets=secrets)
    assert records_in([record.encoded]) == [record]
    assert "hush" not in repr(record)
    with pytest.raises(ValueError, match="extra") as error:
        records_in([record.encoded.replace('"generation_key"', '"extra"')])
    assert "hush" not in str(error.value)
