"""Nodes of hosts whose leader and journal are in etcd, with real members of a cluster."""

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest

from conftest import wait_until
from etcd_members import free_ports, members, needs_etcd
from holdfast.coordinator.replicated_journal import (
    HostAdmitted,
    JournalRecord,
    ReplicatedJournal,
    RunSecrets,
)
from holdfast.core.actions import RunEnded
from holdfast.errors import HoldfastError, JobError
from holdfast.job.settings import EtcdSettings
from holdfast.runs.replication.etcd_journal import EtcdClient, EtcdJournal, encoded
from holdfast.runs.replication.etcd_node import EtcdNode

pytestmark = [pytest.mark.slow, needs_etcd]

PREFIX = "/holdfast/run/attempt/"
FIRST = JournalRecord(secrets=RunSecrets(authority="a", coordinator="c", generation_key="k"))


class Nodes:
    """Nodes of one start of a run."""

    def __init__(self, settings, owned):
        self.settings = settings
        self._owned = owned

    def first(self):
        """The node that begins the run."""
        return self.add(FIRST.encoded)

    def add(self, first=None):
        node = EtcdNode(self.settings, PREFIX, "10.0.0.1", first)
        self._owned.callback(node.close)
        node.start()
        return node

    def journal(self, node):
        """The journal as a coordinator of the node's host has it."""
        near, far = socket.socketpair()
        node.serve_journal(near)
        return self._owned.enter_context(ReplicatedJournal(far, node.name))

    def keys(self):
        """The number of keys in etcd."""
        prefix = {"key": encoded("/holdfast/"), "range_end": encoded("/holdfast0")}
        answer = EtcdClient(self.settings).ask("kv/range", {**prefix, "count_only": True})
        return int(answer.get("count", 0))


@pytest.fixture
def cluster(tmp_path):
    with members(tmp_path) as made:
        yield made


@pytest.fixture
def nodes(cluster):
    with ExitStack() as owned:
        yield Nodes(cluster.settings, owned)


def admitted(number):
    return HostAdmitted(host=f"h{number}", keys="", token="")


class Leader:
    """A process that begins a run, appends as many entries as it is told, and can be killed."""

    def __init__(self, settings):
        words = [sys.executable, "-c", PROGRAM, settings.model_dump_json(), FIRST.encoded]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout.readline() == "leads\n"

    def append(self, number):
        """Have it append an entry; returns its answer."""
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


PROGRAM = """
import socket, sys
from holdfast.coordinator.replicated_journal import HostAdmitted, ReplicatedJournal
from holdfast.errors import HoldfastError
from holdfast.job.settings import EtcdSettings
from holdfast.runs.replication.etcd_journal import EtcdJournal
from holdfast.runs.replication.etcd_node import EtcdNode

settings = EtcdSettings.model_validate_json(sys.argv[1])
node = EtcdNode(settings, "/holdfast/run/attempt/", "10.0.0.1", sys.argv[2])
node.start()
near, far = socket.socketpair()
node.serve_journal(near)
journal = ReplicatedJournal(far, node.name)
print("leads", flush=True)
for line in sys.stdin:
    try:
        journal.admit(HostAdmitted(host=f"h{line.strip()}", keys="", token=""))
        print("appended", flush=True)
    except HoldfastError:
        print("refused", flush=True)
"""


@pytest.fixture
def leader(cluster):
    with closing(Leader(cluster.settings)) as made:
        yield made


def encoded_entries(count):
    return (FIRST.encoded, *(JournalRecord(admitted=admitted(n)).encoded for n in range(count)))


def test_what_the_leader_appends_the_others_see(nodes):
    first = nodes.first()
    other = nodes.add()
    assert first.leads
    journal = nodes.journal(first)
    for number in range(3):
        journal.admit(admitted(number))
    assert first.entries == encoded_entries(3)
    wait_until(lambda: other.entries == encoded_entries(3))
    assert not other.leads


def test_a_leader_that_is_killed_is_replaced_by_a_node_with_all_entries(nodes, leader):
    others = [nodes.add(), nodes.add()]
    assert [leader.append(number) for number in range(20)] == ["appended"] * 20
    leader.process.kill()
    wait_until(lambda: any(node.leads for node in others))
    (successor,) = [node for node in others if node.leads]
    assert successor.entries == encoded_entries(20)
    successor.announce("10.0.0.2:50051", {})
    wait_until(lambda: all(node.coordinator == "10.0.0.2:50051" for node in others))


def test_a_leader_that_was_stopped_and_replaced_cannot_append(nodes, leader):
    other = nodes.add()
    assert leader.append(0) == "appended"
    leader.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: other.leads)
    leader.process.send_signal(signal.SIGCONT)
    assert leader.append(1) == "refused"
    nodes.journal(other).admit(admitted(1))
    assert other.entries == encoded_entries(2)


def test_entries_are_fenced_by_the_revision_of_the_leader(cluster):
    journal = EtcdJournal(cluster.settings, PREFIX)
    lease = journal.lease()
    before = journal.begin("a", lease, "first").revision
    assert journal.append(before, 2, "second")
    assert journal.append(before, 2, "second")  # again, as if the answer had been lost
    assert not journal.append(before, 2, "another")
    journal.revoke(lease)
    assert not journal.append(before, 3, "third")  # nobody leads
    journal.take("b", journal.lease())
    assert not journal.append(before, 3, "third")
    assert not journal.announce(before, "10.0.0.1:50051")
    journal.remove(before)
    view = journal.view(0)
    assert (view.leader, view.entries, view.coordinator) == ("b", ("first", "second"), "")
    assert journal.append(view.revision, 3, "of b")


@pytest.mark.parametrize("number", range(3))
def test_the_loss_of_a_member_changes_nothing(nodes, cluster, number):
    first = nodes.first()
    other = nodes.add()
    journal = nodes.journal(first)
    journal.admit(admitted(0))
    cluster.kill(number)
    journal.admit(admitted(1))
    wait_until(lambda: other.entries == encoded_entries(2))
    assert first.leads
    assert first.times_led == 1


def test_a_leader_steps_down_while_no_member_answers(nodes, cluster):
    both = [nodes.first(), nodes.add()]
    nodes.journal(both[0]).admit(admitted(0))
    cluster.send(signal.SIGSTOP)
    wait_until(lambda: not both[0].leads)
    assert not both[0].is_deposed, "it may lead again"
    cluster.send(signal.SIGCONT)
    wait_until(lambda: any(node.leads for node in both))
    (leader,) = [node for node in both if node.leads]
    nodes.journal(leader).admit(admitted(1))
    wait_until(lambda: all(node.entries == encoded_entries(2) for node in both))
    assert both[0].leads or both[0].is_deposed


def test_a_leader_that_leaves_is_replaced_and_the_end_of_the_run_removes_the_keys(nodes):
    first = nodes.first()
    other = nodes.add()
    nodes.journal(first).set_present({"h1": first.name, "h2": other.name})
    first.leave()
    wait_until(lambda: other.leads)
    wait_until(lambda: first.is_deposed)
    nodes.journal(other).append(RunEnded(reason=""))
    assert nodes.keys() > 0
    other.leave()
    wait_until(lambda: nodes.keys() == 0)


def test_a_run_that_ends_before_others_have_joined_leaves_no_keys(nodes):
    first = nodes.first()
    nodes.journal(first).set_present({"h1": first.name})
    first.leave()
    wait_until(lambda: nodes.keys() == 0)


def test_a_cluster_that_does_not_answer_is_named_at_the_start():
    (port,) = free_ports(1)
    settings = EtcdSettings(endpoints=[f"http://127.0.0.1:{port}", "http://[::1]:1"])
    with pytest.raises(HoldfastError) as error:
        EtcdNode(settings, PREFIX, "10.0.0.1", FIRST.encoded)
    assert f"at any of http://127.0.0.1:{port}, http://[::1]:1 (" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_certificate_is_named(tmp_path):
    settings = EtcdSettings(endpoints=["https://127.0.0.1:1"], ca=tmp_path / "ca.pem")
    with pytest.raises(JobError, match=r"make .*ca\.pem readable PEM files"):
        EtcdNode(settings, PREFIX, "10.0.0.1")
