"""Which nodes a coordinator that has moved tells where it is."""

from holdfast.coordinator.replicated_journal import (
    MAX_LOST_TOLD,
    HostExpected,
    HostsPresent,
    JournalRecord,
    told_nodes,
)


def present(*names):
    nodes = {name: f"node-{name}" for name in names}
    return JournalRecord(present=HostsPresent(nodes=nodes, leader=nodes[names[0]]))


def expected(name):
    return JournalRecord(expected=HostExpected(host=name, node=f"node-{name}"))


def test_a_host_whose_agent_starts_is_told():
    assert told_nodes([present("a", "b"), expected("c")]) == ["node-a", "node-b", "node-c"]


def test_a_host_that_was_lost_is_told():
    assert told_nodes([present("a", "b", "c"), present("a", "c")]) == ["node-b", "node-a", "node-c"]


def test_all_present_hosts_and_the_newest_others_are_told():
    others = [expected(f"lost-{number}") for number in range(100)]
    told = told_nodes([*others, present("a", "b")])
    assert told[-2:] == ["node-a", "node-b"]
    assert told[0] == f"node-lost-{100 - MAX_LOST_TOLD}"
