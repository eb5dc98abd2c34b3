"""What follows if workers of two hosts cannot reach each other."""

import dataclasses

from holdfast.core.actions import AppendToJournal, ProbeHost, SendStatus
from holdfast.core.agent import AgentStateMachine
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import (
    DesiredStateReceived,
    PeerReported,
    ProbeCompleted,
    StatusReceived,
    Tick,
    WorkerHalted,
)
from holdfast.core.links import GRACE_S, LinkDecision, Links, PeerProbes
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import DesiredState, Probe, ResumePoint, Stage, Status

HOSTS = "abc"


def links(**severed):
    """Links as hosts report them at 10 s."""
    made = Links()
    for number, (host, peers) in enumerate(severed.items()):
        made.on_status(Status(host=host, number=1, severed=peers), 10.0 + 0.1 * number)
    return made


def decided(made, suspected=()):
    assert made.decide(HOSTS, suspected, 10.0 + GRACE_S - 0.01) is None, "others may report"
    return made.decide(HOSTS, suspected, 10.0 + GRACE_S)


def test_of_two_hosts_that_cannot_reach_each_other_the_later_one_is_fenced():
    assert decided(links(a={"b": False})) == LinkDecision(fence=("b",), reason="cannot reach a")
    assert decided(links(a={"b": False}, b={"a": False})).fence == ("b",)
    assert decided(links(b={"a": False}, a={"b": True})).fence == ("b",)


def test_the_host_with_most_links_that_are_severed_is_fenced():
    made = links(a={"b": False}, c={"a": False})
    assert decided(made) == LinkDecision(fence=("a",), reason="cannot reach b, c")


def test_as_many_hosts_are_fenced_as_it_takes():
    made = links(a={"b": False}, c={"d": False})
    decision = made.decide("abcd", (), 10.0 + GRACE_S)
    assert decision == LinkDecision(fence=("d", "b"), reason="cannot reach a, c")


def test_workers_whose_connection_broke_connect_again():
    decision = LinkDecision(fence=(), reason="the connection of b and c broke")
    assert decided(links(c={"b": True})) == decision


def test_heartbeats_decide_of_hosts_that_fell_silent():
    made = links(a={"b": False}, b={"c": False})
    assert decided(made, suspected=["b"]) is None
    assert made.next_deadline() == 10.0 + 2 * GRACE_S, "it is asked again"
    assert made.decide(HOSTS, [], 10.0 + 2 * GRACE_S).fence == ("b",)


def test_a_link_that_is_back_needs_no_decision():
    made = links(a={"b": False})
    made.on_status(Status(host="a", number=2), 10.5)
    assert made.next_deadline() is None
    assert made.decide(HOSTS, [], 99.0) is None


def test_an_agent_reports_only_what_a_probe_has_shown():
    peers = PeerProbes()
    (probe,) = peers.on_reported("b", "b:1", is_broken=False)
    assert probe == Probe(-1, "b", "b:1")
    assert peers.on_reported("b", "b:1", is_broken=False) == [], "one at a time"
    assert not peers.on_probed(-1, is_reached=True)
    assert peers.severed == {}, "it only computes"
    (probe,) = peers.on_reported("b", "b:1", is_broken=False)
    assert peers.on_probed(probe.number, is_reached=False)
    assert peers.severed == {"b": False}
    (probe,) = peers.on_reported("b", "b:1", is_broken=False)
    assert peers.on_probed(probe.number, is_reached=True)
    assert peers.severed == {}, "the link is back"
    (probe,) = peers.on_reported("b", "b:1", is_broken=True)
    assert peers.on_probed(probe.number, is_reached=True)
    assert peers.severed == {"b": True}, "a connection that broke is not back"
    peers.clear()
    assert peers.severed == {}
    assert not peers.on_probed(probe.number, is_reached=False), "of a generation before"


def test_an_agent_forgets_its_probes_with_the_generation():
    peers = PeerProbes()
    (old,) = peers.on_reported("b", "b:1", is_broken=True)
    peers.clear()
    (probe,) = peers.on_reported("b", "b:1", is_broken=False)
    assert probe.number != old.number
    assert not peers.on_probed(old.number, is_reached=False)
    assert not peers.on_probed(probe.number, is_reached=True)
    assert peers.severed == {}


def test_the_result_of_a_probe_is_that_of_one_host():
    peers = PeerProbes()
    probes = [each for host in "bc" for each in peers.on_reported(host, "x:1", is_broken=False)]
    assert peers.on_probed(probes[1].number, is_reached=False)
    assert peers.severed == {"c": False}
    assert peers.on_reported("b", "x:1", is_broken=False) == [], "its result is still to come"


def test_a_new_generation_has_no_links_that_are_severed():
    made = links(a={"b": False})
    made.clear()
    assert made.next_deadline() is None
    made.on_status(Status(host="c", number=2, severed={"a": True}), 20.0)
    assert made.next_deadline() == 20.0 + GRACE_S
    assert made.decide(HOSTS, (), 20.0 + GRACE_S).fence == ()


def test_a_link_that_is_back_leaves_others_to_decide():
    made = links(a={"b": False}, c={"b": False})
    made.on_status(Status(host="a", number=2), 10.5)
    assert made.next_deadline() == 10.0 + GRACE_S
    assert decided(made) == LinkDecision(fence=("c",), reason="cannot reach b")


def running_agent():
    """The agent of host a in generation 1 with hosts a and b."""
    agent = AgentStateMachine("a", 1, 1.0, 0.0)
    desired = DesiredState(
        generation=1, stage=Stage.HALT, ranks=(0,), members={0: "a", 1: "b"}, addresses={1: "b:9"}
    )
    agent.handle(DesiredStateReceived(desired), 0.0)
    agent.handle(WorkerHalted(0, 1, 3, 0), 0.0)
    start = ResumePoint(step=3, donors={0: 0, 1: 1})
    resumed = dataclasses.replace(desired, stage=Stage.RUN, resume_point=start)
    agent.handle(DesiredStateReceived(resumed), 0.0)
    return agent


def test_an_agent_probes_the_worker_that_one_of_its_own_has_reported():
    agent = running_agent()
    (probed,) = agent.handle(PeerReported(1, peer=1, is_broken=False), 1.0)
    assert probed == ProbeHost(Probe(-1, "b", "b:9"))
    (sent,) = agent.handle(ProbeCompleted(-1, is_reached=False), 1.3)
    assert isinstance(sent, SendStatus)
    assert sent.status.severed == {"b": False}
    assert agent.handle(PeerReported(0, peer=1, is_broken=True), 1.4) == []


def test_an_agent_forgets_in_a_new_generation_what_it_has_reported_of_links():
    agent = running_agent()
    agent.handle(PeerReported(1, peer=1, is_broken=True), 1.0)
    agent.handle(ProbeCompleted(-1, is_reached=False), 1.3)
    again = DesiredState(generation=2, stage=Stage.HALT, ranks=(0,), members={0: "a", 1: "b"})
    agent.handle(DesiredStateReceived(again), 1.5)
    (*_, sent) = agent.handle(WorkerHalted(0, 2, 3, 0), 1.6)
    assert (sent.status.generation, sent.status.severed) == (2, {})


def coordinator():
    """A coordinator of three hosts, which train in generation 1."""
    policy = RecoveryPolicy(world_size=3, min_workers=1, start_workers=3)
    run = CoordinatorStateMachine(policy, [], 0.0)
    stages = [{}, {"generation": 1, "stage": Stage.HALT}, {"generation": 1, "stage": Stage.RUN}]
    for number, fields in enumerate(stages):
        for host in HOSTS:
            status = Status(host=host, number=number, capacity=1, probe_address="x:1", **fields)
            run.handle(StatusReceived(status), 0.0)
        run.handle(Tick(), 0.0)
    return run


def report(run, host, now, **fields):
    status = Status(host=host, number=9, generation=1, stage=Stage.RUN, capacity=1, **fields)
    return run.handle(StatusReceived(status), now)


def opened(actions):
    return [each.entry for each in actions if isinstance(each, AppendToJournal)]


def test_the_coordinator_continues_without_a_host_that_another_cannot_reach():
    run = coordinator()
    report(run, "a", 1.0, severed={"b": False})
    report(run, "b", 1.1, severed={"a": False})
    assert run.next_deadline() == 1.0 + GRACE_S
    (entry,) = opened(run.handle(Tick(), 1.0 + GRACE_S))
    assert set(entry.members.values()) == {"a", "c"}
    assert run.next_deadline() > 1.0 + GRACE_S


def test_the_coordinator_lets_all_connect_again_where_a_connection_broke():
    run = coordinator()
    report(run, "a", 1.0, severed={"b": True})
    (entry,) = opened(run.handle(Tick(), 1.0 + GRACE_S))
    assert set(entry.members.values()) == {"a", "b", "c"}
