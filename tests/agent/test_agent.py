"""The agent hears of every death, whenever it comes, and of those of its own run alone."""

import pytest

from conftest import FAILING_TASKS, TASKS, events_of
from holdfast.errors import HoldfastError, WorkerFailed
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow


def test_workers_that_die_while_the_next_are_forked_end_the_run(train, tmp_path):
    keys = {"task": f"{FAILING_TASKS}:vanishing", "workers": 8, "shards": 8, "on_failure": "stop"}
    with pytest.raises(WorkerFailed, match=r"rank \d was killed by SIGKILL"):
        train(run_dir=tmp_path / "run", **keys)
    ended = [event for event in events_of(tmp_path / "run") if event["event"] == "worker-exited"]
    assert ended


def test_a_death_of_an_earlier_run_is_not_taken_for_one_of_this(train):
    aborted = Controls(abort=True)
    with pytest.raises(HoldfastError, match="the run was aborted"):
        train(task=f"{TASKS}:eternal", workers=2, shards=2, controls=aborted)
    result = train(epochs=1, workers=2, on_failure="stop")
    assert result["status"] == "finished"
