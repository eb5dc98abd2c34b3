"""Nodes of one run: who leads, which entries each has, and what one host's failure changes."""

import os
import select
import signal
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from conftest import wait_until
from holdfast.core.consensus.log import ReplicatedEntry
from holdfast.core.consensus.messages import AppendEntries, Vote
from holdfast.errors import HoldfastError
from holdfast.wire.node_messages import Announcement
from nodes import STRANGER, NodeProcess, Nodes, admitted, hosts_in, say, voters_of

pytestmark = pytest.mark.slow

NODE = "holdfast.runs.replication.node"


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    monkeypatch.setattr(f"{NODE}.ELECTION_S", 0.3)
    monkeypatch.setattr(f"{NODE}.ANNOUNCE_S", 0.1)


@pytest.fixture
def nodes(tmp_path):
    with closing(Nodes(tmp_path)) as made:
        yield made


def the_leader(made):
    """The node that leads, once there is one."""
    wait_until(lambda: any(node.leads for node in made))
    return next(node for node in made if node.leads)


def follow(nodes, node, leader, *, term=1, payload="{}"):
    """Have a node follow a leader that nobody hears again, and in whose place it can lead alone."""
    entries = (ReplicatedEntry(0, voters=(node.name,)), ReplicatedEntry(term, payload))
    message = AppendEntries(
        term=term, previous_index=0, previous_term=0, entries=entries, commit_index=2, sent_at=0.0
    )
    say(nodes.agent(node), sender=leader, append_entries=message)
    wait_until(lambda: bool(node.entries))


def test_every_host_gets_every_entry_in_order(nodes):
    made, journal = nodes.three()
    expected = [str(number) for number in range(100)]
    for host in expected:
        journal.admit(admitted(host))
    for node in made:
        wait_until(lambda node=node: hosts_in(node) == expected)
    assert [node.leads for node in made] == [True, False, False]


def test_another_host_leads_with_all_entries_once_the_leader_has_ended(nodes):
    made, journal = nodes.three()
    for number in range(5):
        journal.admit(admitted(str(number)))
    made[0].close()
    leader = the_leader(made[1:])
    successor = nodes.journal(leader)
    assert [each.host for each in successor.admitted()] == ["0", "1", "2", "3", "4"]
    assert successor.lost() == ["a"]
    successor.admit(admitted("5"))
    for node in made[1:]:
        wait_until(lambda node=node: hosts_in(node) == ["0", "1", "2", "3", "4", "5"])


def test_the_last_host_of_three_goes_on_alone(nodes):
    made, journal = nodes.three()
    made[0].close()
    leader = the_leader(made[1:])
    (other,) = {*made[1:]} - {leader}
    other.close()
    nodes.journal(leader).admit(admitted("late"))
    assert hosts_in(leader) == ["late"]
    with pytest.raises(HoldfastError, match="lead"):
        journal.admit(admitted("lost"))


def test_a_leader_that_leaves_hands_over_to_another_host(nodes):
    made, journal = nodes.three()
    journal.admit(admitted("x"))
    made[0].leave()
    leader = the_leader(made[1:])
    wait_until(lambda: not made[0].leads)
    assert hosts_in(leader) == ["x"]
    with pytest.raises(HoldfastError, match="does not lead"):
        journal.admit(admitted("y"))


def test_a_host_that_joins_later_gets_what_was_decided_before(nodes):
    first = nodes.begin()
    journal = nodes.journal(first)
    for number in range(200):  # more than one message has
        journal.admit(admitted(str(number)))
    second = nodes.join()
    third = nodes.join()
    journal.set_present({"a": first.name, "b": second.name, "c": third.name})
    wait_until(lambda: hosts_in(third) == hosts_in(second) == hosts_in(first))
    assert len(hosts_in(first)) == 200


def test_the_other_one_of_two_hosts_changes_nothing_by_its_end(nodes):
    first = nodes.begin()
    other = nodes.join()
    journal = nodes.journal(first)
    journal.set_present({"a": first.name, "b": other.name})
    other.close()
    journal.admit(admitted("x"))
    assert first.leads


@pytest.mark.parametrize("backlog", [None, 0], ids=["silent", "unreachable"])
def test_a_host_that_never_answers_gets_no_vote(nodes, backlog):
    first = nodes.begin()
    with nodes.journal(first) as journal, ExitStack() as owned:
        silent = owned.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
        address = silent.getsockname()
        if backlog == 0:  # once its queue is full, the kernel drops packets of new connections
            for _ in range(4):
                filler = owned.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(address)
        hosts = {"b": f"{1:016x}@127.0.0.1:{address[1]}", "c": STRANGER}
        journal.set_present({"a": first.name, **hosts})
        wait_until(lambda: bool(first._machine._progress))
        journal.admit(admitted("x"))
        assert voters_of(first) == (first.name,)


def test_a_leader_whose_voters_have_all_ended_goes_on_alone(nodes):
    made, journal = nodes.three()
    made[1].close()
    made[2].close()
    journal.admit(admitted("x"))
    assert hosts_in(made[0]) == ["x"]


def test_an_entry_waits_while_all_other_voters_are_frozen(nodes):
    first = nodes.begin()
    others = NodeProcess(nodes)
    journal = nodes.journal(first)
    journal.set_present(dict(zip("abc", [first.name, *others.names], strict=True)))
    wait_until(lambda: len(voters_of(first)) == 3)
    os.kill(others.process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        appended = pool.submit(journal.admit, admitted("x"))
        assert not wait([appended], 0.5).done
        # A coordinator that is started again must not miss what the one before has proposed.
        restarted = pool.submit(nodes.journal, first)
        assert not wait([restarted], 0.5).done
        os.kill(others.process.pid, signal.SIGCONT)
        appended.result(60)
        assert [each.host for each in restarted.result(60).admitted()] == ["x"]


def test_a_leader_that_is_slow_is_kept_until_its_host_refuses_connections(nodes):
    follower = nodes.join()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        follow(nodes, follower, f"{0:016x}@127.0.0.1:{listener.getsockname()[1]}")
        probes = 0
        while probes < 3:  # it looks again and again, while it could have been elected long ago
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                probes += not connection.recv(1)  # its answers, in contrast, say something
        assert not follower.leads
    wait_until(lambda: follower.leads)


def test_a_leader_that_is_slow_for_too_long_is_replaced(nodes, monkeypatch):
    monkeypatch.setattr(f"{NODE}.SLOW_LIMIT_S", 0.5)
    follower = nodes.join()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        follow(nodes, follower, f"{0:016x}@127.0.0.1:{listener.getsockname()[1]}")
        wait_until(lambda: follower.leads)


def test_a_leader_whose_name_cannot_be_resolved_any_more_is_replaced(nodes):
    follower = nodes.join()
    follow(nodes, follower, f"{0:016x}@host.invalid:1")
    wait_until(lambda: follower.leads)


def test_a_coordinator_of_an_earlier_term_of_this_host_decides_nothing_more(nodes):
    node = nodes.begin()
    journal = nodes.journal(node)
    journal.admit(admitted("x"))
    # Some other host has a newer term; then this one, the only voter, is elected again.
    say(nodes.agent(node), vote=Vote(term=99, is_granted=False))
    wait_until(lambda: node._machine.term > 99 and node.leads)
    with pytest.raises(HoldfastError, match="does not lead"):
        journal.admit(admitted("y"))
    assert [each.host for each in nodes.journal(node).admitted()] == ["x"]


def test_an_announcement_reaches_hosts_that_take_part_no_more(nodes):
    leader = nodes.begin()
    others = [nodes.join(), nodes.join()]
    leader.announce("10.0.0.1:50051", [each.name for each in others])
    for node in (leader, *others):
        wait_until(lambda node=node: node.coordinator == "10.0.0.1:50051")
        assert select.select([node], [], [], 60)[0]


def test_an_announcement_of_an_older_term_changes_nothing(nodes):
    node = nodes.join()
    peer = nodes.agent(node)
    say(peer, announcement=Announcement(term=5, address="newer:1"))
    say(peer, announcement=Announcement(term=3, address="older:1"))
    heartbeat = AppendEntries(
        term=7,
        previous_index=0,
        previous_term=0,
        entries=(ReplicatedEntry(7, "{}"),),
        commit_index=1,
        sent_at=0.0,
    )
    say(peer, append_entries=heartbeat)
    wait_until(lambda: bool(node.entries))
    assert node.coordinator == "newer:1"
    # It knows of term 7 by now, whose leader has announced nothing yet.
    say(peer, announcement=Announcement(term=6, address="older:2"))
    entries = (*heartbeat.entries, ReplicatedEntry(7, "{}"))
    say(peer, append_entries=replace(heartbeat, entries=entries, commit_index=2))
    wait_until(lambda: len(node.entries) == 2)
    assert node.coordinator == "newer:1"
    say(peer, announcement=Announcement(term=7, address="newest:1"))
    wait_until(lambda: node.coordinator == "newest:1")


def test_a_host_that_does_not_lead_announces_nothing(nodes):
    node = nodes.join()
    heartbeat = AppendEntries(
        term=4,
        previous_index=0,
        previous_term=0,
        entries=(ReplicatedEntry(4, "{}"),),
        commit_index=1,
        sent_at=0.0,
    )
    peer = nodes.agent(node)
    say(peer, append_entries=heartbeat)
    wait_until(lambda: bool(node.entries))
    node.announce("own:1", [])
    node.append("ignored")
    say(peer, announcement=Announcement(term=4, address="leader:1"))
    wait_until(lambda: bool(node.coordinator))
    assert node.coordinator == "leader:1"
    assert node.entries == ("{}",)


def test_nodes_meet_over_ipv6(nodes):
    try:
        first = nodes.begin("::1")
    except OSError:
        pytest.skip("needs IPv6")
    others = [nodes.join("::1"), nodes.join("::1")]
    journal = nodes.journal(first)
    journal.set_present(dict(zip("abc", [first.name, *(n.name for n in others)], strict=True)))
    journal.admit(admitted("x"))
    for node in others:
        wait_until(lambda node=node: hosts_in(node) == ["x"])
    wait_until(lambda: len(voters_of(first)) == 3)
    first.close()
    the_leader(others)
