"""A worker that is much slower leaves for standby and returns, and the weights do not show it."""

import os
import signal

import pytest
from test_recovery import assert_each_step_once

from conftest import TASKS, events_of, sampled
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

SLOW_FROM, CURED_AT = 10, 32
TASK = {
    "task": f"{TASKS.parent / 'straggler_tasks.py'}:main",
    "batch": 64,
    "shards": 16,
    "workers": 4,
    "balance": "dynamic",
}


@pytest.fixture
def params(tmp_path):
    return {
        "slow": 1,
        "lasts": 1,
        "slow_from": SLOW_FROM,
        "cured": str(tmp_path / "cured"),
        "cured_at": CURED_AT,
        "steps": CURED_AT + 24,
    }


@pytest.fixture
def undisturbed(train, params):
    """The weights of a run without a straggler."""
    even = TASK | {"balance": "even", "workers": 2}
    return train(**even, params=params | {"slow": -1, "lasts": 0})["weights_sha256"]


def on_eviction(run_dir, act):
    """What to watch a run with, so that `act` is called once with the ranks and processes of its
    workers when one is on standby.
    """
    pending = [act]

    def watch(_):
        if pending and events_of(run_dir, "worker-evicted"):
            started = events_of(run_dir, "worker-started")
            pending.pop()({event["rank"]: event["pid"] for event in started})

    return watch


@pytest.mark.full
@pytest.mark.parametrize("rank", sampled([0, 1, 3], 0))
def test_a_straggler_is_evicted_and_back_after_its_cure(train, undisturbed, params, tmp_path, rank):
    (tmp_path / "cured").unlink()  # of the run without a straggler
    run = train(**TASK, params=params | {"slow": rank}, run_dir=tmp_path / "run")

    assert run["weights_sha256"] == undisturbed
    (evicted,) = events_of(tmp_path / "run", "worker-evicted")
    (returned,) = events_of(tmp_path / "run", "worker-returned")
    assert (evicted["rank"], returned["rank"]) == (rank, rank)
    assert evicted["reason"].removesuffix(" (compute)").endswith(" times as long"), (
        "slower than it was"
    )
    assert SLOW_FROM < evicted["step"] < CURED_AT <= returned["step"]
    assert len(events_of(tmp_path / "run", "worker-started")) == 4
    assert_each_step_once(tmp_path / "run", run["steps"])


@pytest.mark.soak
@pytest.mark.parametrize("rank", sampled([1, 2], 0))
@pytest.mark.parametrize("on_failure", sampled(["replace", "shrink"], 0))
def test_a_death_while_a_worker_is_on_standby_changes_nothing(
    train, undisturbed, params, tmp_path, rank, on_failure
):
    """Rank 1 is on standby; so it dies there itself, or another one while it is there."""
    (tmp_path / "cured").unlink()
    kill = on_eviction(tmp_path / "run", lambda pids: os.kill(pids[rank], signal.SIGKILL))
    keys = TASK | {"on_failure": on_failure}
    run = train(**keys, params=params, run_dir=tmp_path / "run", watch=kill)

    assert run["weights_sha256"] == undisturbed
    exits = events_of(tmp_path / "run", "worker-exited")
    assert [event["rank"] for event in exits if event["unexpected"]] == [rank]
    assert_each_step_once(tmp_path / "run", run["steps"])


@pytest.mark.soak
def test_a_run_stops_and_resumes_while_a_worker_is_on_standby(train, undisturbed, params, tmp_path):
    (tmp_path / "cured").unlink()
    controls = Controls()

    def stop(_):
        controls.stop = True

    watch = on_eviction(tmp_path / "run", stop)
    keys = {**TASK, "params": params, "run_dir": tmp_path / "run"}
    stopped = train(**keys, controls=controls, watch=watch)
    assert stopped["status"] == "stopped"
    assert stopped["steps"] < params["steps"]
    resumed = train(**keys, resume=True)
    assert resumed["weights_sha256"] == undisturbed
    assert_each_step_once(tmp_path / "run", params["steps"])


@pytest.mark.soak
def test_a_run_ends_while_a_worker_is_on_standby(train, undisturbed, params, tmp_path):
    (tmp_path / "cured").unlink()
    never = params | {"cured_at": -1}
    run = train(**TASK, params=never, run_dir=tmp_path / "run")
    assert (run["weights_sha256"], run["status"]) == (undisturbed, "finished")
    assert not events_of(tmp_path / "run", "worker-returned")
    exits = events_of(tmp_path / "run", "worker-exited")
    assert not any(event["unexpected"] for event in exits)
