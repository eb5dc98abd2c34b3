"""The times of a step: what they add up to."""

from holdfast.core.balance.times import PHASES, StepTimes


def test_without_measurements_all_times_are_zero():
    assert set(StepTimes()) == {0}
    assert (StepTimes().busy_ns, StepTimes().total_ns) == (0, 0)


def test_a_worker_is_busy_in_its_shards_and_in_the_rest():
    assert StepTimes(shards_ns=5, rest_ns=2, wait_ns=100).busy_ns == 7


def test_the_phases_together_are_the_step():
    phases = {f"{name}_ns": 1 << number for number, name in enumerate(PHASES)}
    assert len(phases) == 10
    others = {"shards_ns": 999, "link_ns": 999, "processor_ns": 999, "memory_permille": 999}
    assert StepTimes(**phases, **others).total_ns == (1 << 10) - 1
    assert PHASES[0] == "data"
    assert PHASES[-1] == "checkpoint"
