"""Fault requests: one process requests a fault, the worker acknowledges it."""

import pytest

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus


@pytest.fixture
def arena():
    found = Arena.create(2)
    yield found
    found.close()


def test_every_fault_and_phase_has_its_own_words(arena):
    for phase in Phase:
        WorkerStatus(arena, 1).enter(phase)
    requests = FaultRequests(arena, 1)
    for fault in InProcessFault:
        requests.request(fault, step=7, seconds=fault + 0.5)
    assert [requests.acknowledged(each) for each in InProcessFault] == [(0, 0)] * len(
        InProcessFault
    )
    arena[1, Word.COMMITTED] = 8
    assert [requests.acknowledge(each) for each in InProcessFault] == [
        each + 0.5 for each in InProcessFault
    ]
    assert [requests.acknowledged(each) for each in InProcessFault] == [(1, 8)] * len(
        InProcessFault
    )
    assert not any(FaultRequests(arena, 0).is_pending(each) for each in InProcessFault)


def test_a_request_that_is_withdrawn_while_it_is_acknowledged_counts(arena):
    requests = FaultRequests(arena, 1)
    requests.request(InProcessFault.NAN, step=0, seconds=0)
    assert requests.is_due(InProcessFault.NAN)
    requests.withdraw(InProcessFault.NAN)
    requests.acknowledge(InProcessFault.NAN)
    assert requests.acknowledged(InProcessFault.NAN) == (1, 0)
    assert requests.request(InProcessFault.NAN, step=0, seconds=0) == 2
    assert requests.is_pending(InProcessFault.NAN)
