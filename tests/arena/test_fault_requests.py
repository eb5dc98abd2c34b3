"""What a storm asks of a worker, through words that each of the two writes alone."""

import pytest

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus


@pytest.fixture
def arena():
    found = Arena.create(2)
    yield found
    found.close()


def test_injections_of_all_kinds_and_phases_have_words_of_their_own(arena):
    for phase in Phase:
        WorkerStatus(arena, 1).enter(phase)
    ordered = FaultRequests(arena, 1)
    for injection in InProcessFault:
        ordered.request(injection, step=7, seconds=injection + 0.5)
    assert [ordered.acknowledged(each) for each in InProcessFault] == [(0, 0)] * len(InProcessFault)
    arena[1, Word.COMMITTED] = 8
    assert [ordered.acknowledge(each) for each in InProcessFault] == [
        each + 0.5 for each in InProcessFault
    ]
    assert [ordered.acknowledged(each) for each in InProcessFault] == [(1, 8)] * len(InProcessFault)
    assert not any(FaultRequests(arena, 0).is_pending(each) for each in InProcessFault)


def test_a_withdrawal_in_the_moment_of_obedience_comes_too_late(arena):
    ordered = FaultRequests(arena, 1)
    ordered.request(InProcessFault.NAN, step=0, seconds=0)
    assert ordered.is_due(InProcessFault.NAN)
    ordered.withdraw(InProcessFault.NAN)
    ordered.acknowledge(InProcessFault.NAN)
    assert ordered.acknowledged(InProcessFault.NAN) == (1, 0)
    assert ordered.request(InProcessFault.NAN, step=0, seconds=0) == 2
    assert ordered.is_pending(InProcessFault.NAN)
