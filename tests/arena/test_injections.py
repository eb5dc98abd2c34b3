"""What a storm asks of a worker, through words that each of the two writes alone."""

import pytest

from holdfast.arena.fault_requests import Injection, Injections
from holdfast.arena.memory import Arena, Phase, Word


@pytest.fixture
def arena():
    found = Arena.create(2)
    yield found
    found.close()


def test_injections_of_all_kinds_and_phases_have_words_of_their_own(arena):
    for phase in Phase:
        arena.enter(1, phase)
    ordered = Injections(arena, 1)
    for injection in Injection:
        ordered.order(injection, step=7, seconds=injection + 0.5)
    assert [ordered.obeyed(each) for each in Injection] == [(0, 0)] * len(Injection)
    arena[1, Word.COMMITTED] = 8
    assert [ordered.obey(each) for each in Injection] == [each + 0.5 for each in Injection]
    assert [ordered.obeyed(each) for each in Injection] == [(1, 8)] * len(Injection)
    assert not any(Injections(arena, 0).is_pending(each) for each in Injection)


def test_a_withdrawal_in_the_moment_of_obedience_comes_too_late(arena):
    ordered = Injections(arena, 1)
    ordered.order(Injection.NAN, step=0, seconds=0)
    assert ordered.is_due(Injection.NAN)
    ordered.withdraw(Injection.NAN)
    ordered.obey(Injection.NAN)
    assert ordered.obeyed(Injection.NAN) == (1, 0)
    assert ordered.order(Injection.NAN, step=0, seconds=0) == 2
    assert ordered.is_pending(Injection.NAN)
