"""Restarts are counted in the newest life of a run."""

import pytest

from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import restarts_in

START = ("run-started", {})


def began(number):
    return ("generation-started", {"number": number})


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([START], 0),
        ([START, began(1)], 0),
        ([START, began(1), ("worker-exited", {}), began(2), began(5)], 2),
        ([START, began(1), began(1), began(2), began(2)], 1),
        ([START, began(1), began(2), START, began(1)], 0),
        ([START, began(1), began(2), START], 0),
    ],
    ids=["none", "one", "three", "two-of-two-hosts", "another-life", "nothing-yet"],
)
def test_every_start_of_all_workers_but_the_first_of_a_life_counts(tmp_path, events, count):
    with EventLog(tmp_path / "events.jsonl") as log:
        for event, fields in events:
            log.event(event, **fields)
    assert restarts_in(tmp_path) == count
