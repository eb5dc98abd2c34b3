"""Slow links: the host whose link has become slow is named, and none under noise."""

import random

import pytest

from holdfast.core.balance.slow_links import LEAST_NS, LEAST_USUAL, STEPS, SlowLink, SlowLinks
from holdfast.core.balance.times import StepTimes

MS = 10**6


class Run:
    """Steps of hosts with two workers each that wait some 20 ms for each other's gradients."""

    def __init__(self, num_hosts, seed=0):
        self.hosts = [place // 2 for place in range(2 * num_hosts)]
        self.links, self.chance = SlowLinks(self.hosts), random.Random(seed)

    def step(self, sends_late=None, receives_late=None):
        times = []
        for host in self.hosts:
            peer = self.chance.choice([each for each in self.hosts if each != host])
            wait_ms = self.chance.uniform(15, 25)
            if host == sends_late:
                wait_ms *= 5  # its acknowledgements are late, too
            elif host == receives_late:
                wait_ms *= 8
            elif sends_late is not None:
                peer, wait_ms = sends_late, 8 * wait_ms
            times.append(StepTimes(link_host=peer, link_ns=int(wait_ms * MS)))
        return [(each.host, each.is_slow) for each in self.links.observe(times)]

    def steps(self, count, **trouble):
        """What so many steps show."""
        return [each for _ in range(count) for each in self.step(**trouble)]


@pytest.mark.parametrize("num_hosts", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_sends_late_is_named_within_five_steps(num_hosts, seed):
    run = Run(num_hosts, seed)
    assert run.steps(200) == []
    assert run.steps(5, sends_late=1) == [(1, True)]
    assert run.steps(5) == [(1, False)]


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_host_that_alone_receives_late_is_named(num_hosts):
    run = Run(num_hosts)
    assert run.steps(20) == []
    assert run.steps(5, receives_late=1) == [(1, True)]


def observe(links, *waits):
    """A step in which each member waits for a host: `(host, milliseconds)`."""
    return links.observe([StepTimes(link_host=host, link_ns=int(ms * MS)) for host, ms in waits])


def usual(hosts=(0, 1, 2), steps=LEAST_USUAL):
    """Slow links of hosts that usually wait 10 ms for the first one."""
    links = SlowLinks(hosts)
    for _ in range(steps):
        assert observe(links, *[(0, 10)] * len(hosts)) == []
    return links


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ([(0, 10), (0, 10), (0, 10)], []),
        ([(0, 29), (0, 29), (0, 29)], []),  # below three times as long as usual
        ([(0, 10), (2, 30), (2, 10)], [SlowLink(1, 3.0, True)]),  # alone: it sends late itself
        ([(2, 40), (2, 60), (0, 10)], [SlowLink(2, 6.0, True)]),
        ([(2, 60), (2, 40), (0, 50)], [SlowLink(2, 6.0, True)]),
        ([(1, 40), (2, 60), (1, 40)], [SlowLink(1, 6.0, True)]),  # in most of the long waits
        ([(1, 40), (2, 80), (0, 60)], [SlowLink(2, 8.0, True)]),  # all alike: the longest wait
    ],
)
def test_the_host_in_most_of_the_long_waits_is_named_after_three_steps(waits, found):
    links = usual()
    assert STEPS == 3
    assert [observe(links, *waits) for _ in range(4)] == [[], [], found, []]


def test_the_longest_wait_of_a_host_counts_whichever_member_waits():
    for waits in ([(1, 50), (1, 10)], [(1, 10), (1, 50)]):
        links = usual(hosts=(0, 0, 1))
        steps = [observe(links, *waits, (0, 40)) for _ in range(3)]
        assert steps[-1] == [SlowLink(1, 5.0, True)]


@pytest.mark.parametrize("pause", [1, 2])
def test_long_waits_count_in_a_row_only(pause):
    links = usual()
    for _ in range(6):
        assert observe(links, (0, 10), (0, 90), (0, 10)) == []
        assert observe(links, (0, 10), (0, 90), (0, 10)) == []
        for _ in range(pause):
            assert observe(links, *[(0, 10)] * 3) == []


def test_a_host_is_as_fast_again_after_three_such_steps_in_a_row():
    links = usual()
    steps = [observe(links, (0, 10), (0, 90), (0, 10)) for _ in range(3)]
    assert steps[-1] == [SlowLink(1, 9.0, True)]
    well, slow = [(0, 10)] * 3, [(0, 10), (0, 90), (0, 10)]
    assert [observe(links, *each) for each in (well, well, slow, well, well)] == [[]] * 5
    assert observe(links, *well) == [SlowLink(1, 1.0, False)]
    assert [observe(links, *slow) for _ in range(3)] == [[], [], [SlowLink(1, 9.0, True)]]


def test_nothing_is_named_before_it_is_known_what_is_usual():
    links = usual(steps=LEAST_USUAL - 1)
    slow = [(0, 10), (0, 90), (0, 10)]
    assert observe(links, *slow) == [], "it counts as usual"
    assert [observe(links, *slow) for _ in range(3)][-1] == [SlowLink(1, 9.0, True)]


def test_short_waits_are_always_usual():
    links, least_ms = SlowLinks((0, 1)), LEAST_NS / MS
    for _ in range(2 * LEAST_USUAL):
        observe(links, (1, 0), (0, 0))
    assert not any(observe(links, (1, 0), (0, 2.9 * least_ms)) for _ in range(20))
    links = SlowLinks((0, 1))
    for _ in range(2 * LEAST_USUAL):
        observe(links, (1, 0), (0, 0))
    steps = [observe(links, (1, 0), (0, 3 * least_ms)) for _ in range(3)]
    assert steps[-1] == [SlowLink(1, 3.0, True)]


def test_what_is_usual_follows_waits_that_grow_slowly():
    links, wait_ms = usual(), 10.0
    for _ in range(400):
        wait_ms *= 1.01
        assert observe(links, *[(0, wait_ms)] * 3) == []


def test_times_of_another_number_of_members_are_refused():
    with pytest.raises(ValueError, match="zip"):
        observe(usual(), (0, 10), (0, 10))
