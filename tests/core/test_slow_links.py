"""Slow links: the host whose link has become slow is named, and none under noise."""

import random

import pytest

from holdfast.core.balance.slow_links import SlowLinks
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
