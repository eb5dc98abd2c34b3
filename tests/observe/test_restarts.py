"""Restarts are counted in the newest life of a run."""

import pytest

from holdfast.observe import restarts
from holdfast.observe.lines import EventLog


@pytest.mark.parametrize(
    ("events", "count"),
    [
        (["run-started"], 0),
        (["run-started", "generation-started"], 0),
        (
            [
                "run-started",
                "generation-started",
                "worker-exited",
                "generation-started",
                "generation-started",
            ],
            2,
        ),
        (
            [
                "run-started",
                "generation-started",
                "generation-started",
                "run-started",
                "generation-started",
            ],
            0,
        ),
        (["run-started", "generation-started", "generation-started", "run-started"], 0),
    ],
)
def test_every_start_of_all_workers_but_the_first_of_a_life_counts(tmp_path, events, count):
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in events:
            log.event(event)
    assert restarts.count(tmp_path) == count
