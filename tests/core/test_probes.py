"""When a worker on standby measures itself, and when it is fit."""

from math import inf

from holdfast.core.balance.probes import MAX_DELAY, STEPS_BETWEEN, Probes
from holdfast.core.protocol import Eviction

SLOW = Eviction(rank=1, reason="compute", step=5, threshold_s=0.2, step_s=1.0)


def on_standby():
    probes = Probes()
    probes.begin(SLOW, now=10.0)
    return probes


def test_a_member_computes_no_probe():
    assert (Probes().is_on_standby, Probes().due_at) == (False, inf)


def test_a_probe_is_due_every_few_steps():
    probes = on_standby()
    assert (probes.is_on_standby, probes.due_at) == (True, 10.0 + STEPS_BETWEEN)
    assert not probes.on_measured(0.9, now=14.0)
    assert probes.due_at == 14.0 + STEPS_BETWEEN


def test_two_fast_probes_in_a_row_make_a_worker_fit():
    probes = on_standby()
    measured = [probes.on_measured(seconds, now=20.0) for seconds in (0.2, 0.3, 0.2, 0.1)]
    assert measured == [False, False, False, True]
    assert probes.due_at == inf


def test_a_new_generation_of_the_others_does_not_delay_a_probe():
    probes = on_standby()
    probes.on_measured(0.1, now=14.0)
    probes.begin(SLOW, now=15.0)
    assert probes.due_at == 14.0 + STEPS_BETWEEN
    assert probes.on_measured(0.1, now=17.0)


def test_each_eviction_doubles_the_wait_up_to_a_limit():
    probes, waits = Probes(), []
    for _ in range(9):
        probes.begin(SLOW, now=0.0)
        waits.append(probes.due_at / STEPS_BETWEEN)
        probes.end()
        assert not probes.is_on_standby
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert waits[-1] == MAX_DELAY


def test_a_worker_that_is_evicted_again_needs_two_fast_probes_by_its_new_threshold():
    probes = on_standby()
    assert [probes.on_measured(0.1, now=20.0) for _ in range(2)] == [False, True]
    probes.end()
    assert probes.due_at == inf
    probes.begin(Eviction(rank=1, reason="", step=9, threshold_s=0.5, step_s=2.0), now=100.0)
    assert probes.due_at == 100.0 + 2 * 2.0 * STEPS_BETWEEN
    assert [probes.on_measured(0.4, now=120.0) for _ in range(2)] == [False, True]
