"""Probes of real sockets."""

import select
import socket

import pytest

from holdfast.agent.prober import Prober
from holdfast.core.protocol import Probe
from holdfast.wire.probe import accepts


@pytest.fixture
def prober():
    made = Prober("127.0.0.1")
    yield made
    made.close()


def result_of(prober, address):
    prober.start(Probe(7, "host", address))
    select.select([prober], [], [], 60)
    (completed,) = prober.completed()
    assert completed.number == 7
    return completed.is_reached


def test_an_agent_is_reached_though_it_does_not_run(prober):
    """Nothing here accepts: the kernel does."""
    assert [accepts(prober.address) for _ in range(50)] == [True] * 50
    prober.accept()
    assert result_of(prober, prober.address)


def test_an_agent_that_has_ended_is_not_reached(prober):
    other = Prober("127.0.0.1")
    other.close()
    assert not result_of(prober, other.address)


def test_a_host_that_answers_nothing_is_not_reached():
    """Its backlog is full, so the kernel drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = f"127.0.0.1:{full.getsockname()[1]}"
        while accepts(address):
            pass
        assert not accepts(address)
