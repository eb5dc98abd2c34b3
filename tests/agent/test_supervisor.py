"""The supervisor hears of every death, whenever it comes, and of those of its own run alone."""

import select
from contextlib import closing

import pytest

from conftest import TASKS, events_of
from holdfast.agent.barrier import CheckpointBarrier
from holdfast.agent.supervisor import Controls, Supervisor
from holdfast.arena.memory import Arena
from holdfast.errors import WorkerFailed
from holdfast.job import load
from holdfast.observe.lines import EventLog
from holdfast.worker.launch import Launch

pytestmark = pytest.mark.slow


@pytest.fixture
def supervise(forks, tmp_path):
    """Run workers that are started as the caller says: `supervise(launches) -> result`."""

    def run(launches):
        barrier = CheckpointBarrier(tmp_path, "0a", 2, 1)
        with EventLog(tmp_path / "events.jsonl") as events, closing(Arena.create(2)) as arena:
            supervisor = Supervisor(
                forks, arena, barrier, events, tmp_path, Controls(), timeout_s=60
            )
            return supervisor.run(launches)

    return run


def launch(task, rank, tmp_path):
    values = {"task": f"{TASKS}:{task}", "workers": 2, "shards": 2, "timeout_s": 60}
    job = load.check(values, where="test")
    return Launch(
        job=job, rank=rank, generation=1, run_dir=str(tmp_path), attempt="0a", restore=()
    ).model_dump_json()


def await_a_death(forks):
    """Wait until the fork server has told of a death, which nobody has read yet."""
    assert select.select([forks.channel], [], [], 60)[0]


def test_a_worker_that_dies_while_the_next_is_forked_ends_the_run(forks, supervise, tmp_path):
    def launches():
        yield launch("vanishing", 0, tmp_path)
        await_a_death(forks)
        yield launch("vanishing", 1, tmp_path)

    with pytest.raises(WorkerFailed, match="rank 0 was killed by SIGKILL"):
        supervise(launches())
    ended = [event["rank"] for event in events_of(tmp_path) if event["event"] == "worker-exited"]
    assert sorted(ended) == [0, 1]


def test_a_death_of_an_earlier_run_is_not_taken_for_one_of_this(forks, supervise, train, tmp_path):
    def launches():
        yield launch("eternal", 0, tmp_path)
        raise InterruptedError("as planned")

    with pytest.raises(InterruptedError):
        supervise(launches())
    await_a_death(forks)
    assert train(epochs=1, workers=2)["status"] == "finished"
