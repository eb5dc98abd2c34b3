"""Which of the hosts that fell silent are lost, and when."""

import pytest

from holdfast.core.actions import GenerationOpened
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import Disconnected, ProbeCompleted, StatusReceived, Tick
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Stage, Status
from holdfast.core.reachability import SETTLE_S, SLOW_LIMIT_S, WITNESS_S, Reachability

TIMEOUT_S = 2.0


def status(host, **fields):
    return Status(host=host, number=1, probe_address=f"{host}:1", **fields)


STATUSES = {host: status(host) for host in "abc"}
EPSILON = 1e-6


@pytest.fixture
def suspected():
    """Host b is suspected at 10 s: `(reachability, number of the probe)`."""
    reachability = Reachability(TIMEOUT_S, {})
    ((probe, witness),) = reachability.probes_due(["b"], STATUSES, 10.0)
    assert (probe.host, probe.address, witness) == ("b", "b:1", "c")
    assert reachability.probes_by("c") == (probe,)
    assert reachability.lost(10.2) == []
    return reachability, probe.number


def witnessed(reachability, number, now, *, is_reached):
    reachability.on_heard(status("c", probed={number: is_reached}), now)
    assert reachability.probes_by("c") == ()


def test_a_host_that_none_reaches_is_lost_at_once(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.3, is_reached=False)
    assert reachability.lost(10.3 + SETTLE_S) == [], "the witness may reach it"
    witnessed(reachability, number, 10.35, is_reached=False)
    assert reachability.next_deadline() == 10.35 + SETTLE_S
    assert reachability.lost(10.35 + SETTLE_S) == ["b"]


def test_a_witness_that_does_not_answer_is_not_waited_for(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.3, is_reached=False)
    assert reachability.lost(10.0 + WITNESS_S - EPSILON) == []
    assert reachability.lost(10.0 + WITNESS_S) == ["b"]


def test_a_host_that_the_witness_alone_reaches_is_lost_later(suspected):
    reachability, number = suspected
    witnessed(reachability, number, 10.1, is_reached=True)
    reachability.on_probed(number, 10.3, is_reached=False)
    assert reachability.lost(10.0 + TIMEOUT_S - EPSILON) == []
    assert reachability.lost(10.0 + TIMEOUT_S) == ["b"]


def test_a_host_that_accepts_connections_is_slow_for_a_while(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.1, is_reached=True)
    now = 10.1
    while now + TIMEOUT_S < 10.0 + SLOW_LIMIT_S:
        now += TIMEOUT_S
        assert reachability.next_deadline() == pytest.approx(now)
        assert reachability.lost(now) == []
        ((probe, _),) = reachability.probes_due([], STATUSES, now + EPSILON)
        reachability.on_probed(probe.number, now, is_reached=True)
    assert reachability.lost(10.0 + SLOW_LIMIT_S - EPSILON) == []
    assert reachability.lost(10.0 + SLOW_LIMIT_S) == ["b"]


def test_a_slow_host_that_is_cut_off_is_lost_then(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.1, is_reached=True)
    ((probe, _),) = reachability.probes_due([], STATUSES, 12.2)
    reachability.on_probed(number, 12.3, is_reached=True)  # late, of the first probe
    reachability.on_probed(probe.number, 12.5, is_reached=False)
    assert reachability.lost(12.2 + WITNESS_S) == ["b"]


def test_a_host_that_is_heard_is_not_suspected(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.3, is_reached=False)
    reachability.on_heard(status("b"), 10.4)
    assert reachability.lost(99.0) == []
    assert reachability.next_deadline() is None


def test_nothing_is_decided_before_the_result_of_the_probe(suspected):
    """It comes late where the coordinator itself is starved."""
    reachability, number = suspected
    witnessed(reachability, number, 10.3, is_reached=False)
    assert reachability.lost(10.0 + SLOW_LIMIT_S - EPSILON) == []
    assert reachability.lost(10.0 + SLOW_LIMIT_S) == ["b"]


def test_a_new_probe_is_decided_by_its_own_results(suspected):
    reachability, number = suspected
    witnessed(reachability, number, 10.1, is_reached=True)
    reachability.on_probed(number, 10.2, is_reached=True)
    ((probe, _),) = reachability.probes_due([], STATUSES, 12.2)
    assert reachability.probes_by("c") == (probe,)
    witnessed(reachability, probe.number, 12.3, is_reached=False)
    assert reachability.next_deadline() == 10.0 + SLOW_LIMIT_S
    reachability.on_probed(probe.number, 12.4, is_reached=False)
    assert reachability.lost(12.4 + SETTLE_S) == ["b"]


def test_a_late_result_leaves_the_witness_a_moment(suspected):
    reachability, number = suspected
    late = 10.0 + WITNESS_S - SETTLE_S / 2
    reachability.on_probed(number, late, is_reached=False)
    assert reachability.next_deadline() == late + SETTLE_S


def test_a_host_that_is_slow_is_not_lost_with_others(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.2, is_reached=True)
    ((probe, _),) = reachability.probes_due(["a"], STATUSES, 11.0)
    reachability.on_heard(status("c", probed={probe.number: False}), 11.1)
    reachability.on_probed(probe.number, 11.2, is_reached=False)
    assert reachability.next_deadline() == 11.2 + SETTLE_S
    assert reachability.lost(11.2 + SETTLE_S) == ["a"]


def test_a_host_without_an_address_is_lost_without_a_probe():
    reachability = Reachability(TIMEOUT_S, {})
    assert reachability.probes_due(["a"], {"a": Status(host="a", number=1)}, 3.0) == []
    assert reachability.lost(3.0) == ["a"]


def test_hosts_that_are_lost_together_are_named_together():
    reachability = Reachability(TIMEOUT_S, {})
    probes = [probe for probe, _ in reachability.probes_due(["a", "b"], STATUSES, 1.0)]
    assert len({probe.number for probe in probes}) == 2
    answers = {probe.number: False for probe in probes}
    reachability.on_heard(status("c", probed=answers), 1.3)
    for delay_s, probe in enumerate(probes):
        reachability.on_probed(probe.number, 1.3 + 0.01 * delay_s, is_reached=False)
    assert reachability.lost(1.3 + SETTLE_S) == ["a", "b"]


def test_without_a_witness_the_coordinator_decides():
    reachability = Reachability(TIMEOUT_S, {})
    statuses = {"a": Status(host="a", number=1), "b": status("b")}
    ((probe, witness),) = reachability.probes_due(["b"], statuses, 10.0)
    assert witness == ""
    reachability.on_probed(probe.number, 10.3, is_reached=False)
    assert reachability.next_deadline() == 10.3 + SETTLE_S
    assert reachability.lost(10.3) == []
    assert reachability.lost(10.3 + SETTLE_S) == ["b"]


def test_a_host_that_is_suspected_itself_is_no_witness():
    reachability = Reachability(TIMEOUT_S, {})
    probes = reachability.probes_due(["b", "c"], STATUSES, 10.0)
    assert [witness for _, witness in probes] == ["a", "a"]
    assert len(reachability.probes_by("a")) == 2
    assert reachability.probes_by("c") == ()
    assert list(reachability.suspected) == ["b", "c"]


def test_only_the_newest_answer_of_the_witness_counts(suspected):
    reachability, number = suspected
    reachability.on_probed(number, 10.1, is_reached=False)
    reachability.on_heard(status("a", probed={number: True}), 10.2)
    reachability.on_heard(status("c", probed={number - 1: True}), 10.2)
    assert len(reachability.probes_by("c")) == 1
    witnessed(reachability, number, 10.3, is_reached=True)
    reachability.on_heard(status("c", probed={number: False}), 10.4)
    assert reachability.next_deadline() == 10.0 + TIMEOUT_S


def test_a_host_is_probed_once_until_it_is_due_again(suspected):
    reachability, number = suspected
    assert reachability.probes_due(["b"], STATUSES, 10.05)[0][0].number > number
    assert reachability.probes_due([], STATUSES, 10.1) == []
    reachability.remove("b")
    assert list(reachability.suspected) == []
    assert reachability.next_deadline() is None


def test_a_successor_numbers_its_probes_higher():
    first = Reachability(TIMEOUT_S, {})
    ((before, _),) = first.probes_due(["b"], STATUSES, 10.0)
    ((after, _),) = Reachability(TIMEOUT_S, {}).probes_due(["b"], STATUSES, 10.001)
    assert 0 < before.number < after.number


def test_the_address_that_a_host_has_reported_is_the_newest():
    reachability = Reachability(TIMEOUT_S, {"a": "old:1", "z": "z:1"})
    probes = [probe for probe, _ in reachability.probes_due(["a", "z"], STATUSES, 1.0)]
    assert [probe.address for probe in probes] == ["a:1", "z:1"]


def coordinator():
    """A coordinator of three hosts, in generation 1."""
    policy = RecoveryPolicy(world_size=3, min_workers=1, start_workers=3, heartbeat_timeout_s=2.0)
    run = CoordinatorStateMachine(policy, [], 0.0)
    for host in "abc":
        run.handle(StatusReceived(status(host, capacity=1)), 0.0)
    run.handle(Tick(), 1.0)
    assert (run.generation, run.stage) == (1, Stage.HALT)
    return run


def test_the_coordinator_probes_a_silent_host_from_two_places_and_continues_without_it():
    run = coordinator()
    for host in "ac":
        run.handle(StatusReceived(status(host, capacity=1)), 1.5)
    probed, sent = run.handle(Tick(), 2.5)
    assert probed.probe.host == "b"
    assert (sent.host, sent.desired.probes) == ("c", (probed.probe,))
    assert run.handle(ProbeCompleted(probed.probe.number, is_reached=False), 2.8) == []
    assert run.next_deadline() == 2.5 + WITNESS_S
    run.handle(Tick(), 2.5 + WITNESS_S)
    assert run.generation == 2
    assert set(run.members.values()) == {"a", "c"}


def test_a_host_whose_stream_has_ended_is_probed_too():
    run = coordinator()
    run.handle(Disconnected("b"), 1.1)
    probed, _ = run.handle(Tick(), 1.1 + run.policy.reconnect_s)
    assert probed.probe.host == "b"
    run.handle(ProbeCompleted(probed.probe.number, is_reached=True), 1.7)
    run.handle(Disconnected("b"), 1.8)
    for host in "ac":
        run.handle(StatusReceived(status(host, capacity=1)), 3.0)
    run.handle(Tick(), 3.5)
    assert run.generation == 1
    assert set(run.members.values()) == {"a", "b", "c"}


def test_a_restarted_coordinator_probes_hosts_before_they_have_reported():
    policy = RecoveryPolicy(world_size=3, min_workers=1, heartbeat_timeout_s=2.0)
    journal = [GenerationOpened(5, {0: "a", 1: "b", 2: "c"})]
    run = CoordinatorStateMachine(policy, journal, 0.0, {host: f"{host}:1" for host in "abc"})
    reported = status("a", capacity=1, generation=5, stage=Stage.RUN)
    run.handle(StatusReceived(reported), 1.0)
    probes = {each.probe.host: each.probe for each in run.handle(Tick(), 2.0)[:2]}
    assert {probe.address for probe in probes.values()} == {"b:1", "c:1"}
    run.handle(ProbeCompleted(probes["b"].number, is_reached=True), 2.3)
    run.handle(ProbeCompleted(probes["c"].number, is_reached=True), 2.3)
    for host in "bc":
        slow = status(host, capacity=1, generation=5, stage=Stage.RUN)
        run.handle(StatusReceived(slow), 20.0)
    assert (run.generation, run.stage) == (5, Stage.RUN), "they have trained all the time"
