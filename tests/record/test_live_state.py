"""What the lines of a run say of its workers, failures and pace while it trains."""

from holdfast.core.protocol import WorkerProgress
from holdfast.record.live_state import FailureWindow, RecentSteps, Roster, furthest


def test_evicted_workers_are_on_standby_until_they_return_or_are_members_again():
    workers = Roster()
    workers.take({"event": "run-started", "workers": 4})
    assert workers.missing == 4
    workers.take({"event": "generation-started", "members": [0, 1, 2]})
    assert workers.missing == 1
    for rank in (3, 3):
        workers.take({"event": "worker-evicted", "rank": rank})
    assert (workers.standby, workers.missing) == ({3}, 0)
    workers.take({"event": "worker-returned", "rank": 3})
    assert workers.missing == 1
    workers.take({"event": "worker-evicted", "rank": 3})
    workers.take({"event": "generation-started", "members": [1, 2, 3]})
    assert (workers.members, workers.standby, workers.missing) == ({1, 2, 3}, set(), 1)
    workers.take({"event": "checkpoint-committed"})


def test_only_unexpected_failures_within_the_window_count():
    failures = FailureWindow(10.0)
    failures.take({"event": "worker-exited", "unexpected": True, "time_unix_s": 100.0})
    failures.take({"event": "worker-exited", "unexpected": False, "time_unix_s": 101.0})
    failures.take({"event": "host-lost", "time_unix_s": 105.0})
    failures.take({"event": "worker-started", "time_unix_s": 106.0})
    assert failures.until(104.0) == [100.0]
    assert failures.until(109.0) == [100.0, 105.0]
    assert failures.until(110.0) == [105.0]
    assert failures.until(115.0) == []


def test_the_pace_is_that_of_the_newest_steps_whose_time_is_known():
    steps = RecentSteps()
    assert (steps.newest, steps.pace()) == ({}, None)
    steps.take({"step": 1, "seconds": None, "samples": 8})
    assert steps.pace() is None
    for step in range(2, 100):
        steps.take({"step": step, "seconds": 1.0 if step < 50 else 0.5, "samples": 8})
    assert steps.pace() == (2.0, 16.0)
    assert steps.newest["step"] == 99


def at_step(step):
    return WorkerProgress(
        step=step, total_steps=9, epoch=0, epochs=1, loss=None, samples=0, phase="forward",
        phase_seconds={},
    )  # fmt: skip


def test_the_furthest_worker_has_committed_most_steps():
    assert furthest([]) is None
    assert furthest([at_step(3), at_step(5), at_step(4)]) == at_step(5)
