"""A worker that runs out of memory computes fewer shards or none; the weights do not show it."""

import re

import pytest
from test_recovery import assert_each_step_once
from typer.testing import CliRunner

from conftest import TASKS, events_of, sampled
from holdfast.cli import app
from holdfast.errors import OutOfMemory
from holdfast.record import history

pytestmark = pytest.mark.slow

STEPS = 8
TASK = {
    "task": f"{TASKS.parent / 'memory_tasks.py'}:main",
    "batch": 64,
    "shards": 8,
    "balance": "dynamic",
}


def params(most, since=2):
    return {"most": [list(each) for each in most.items()], "since": since, "steps": STEPS}


@pytest.fixture
def undisturbed(train):
    return train(**TASK, workers=1, params=params({}))["weights_sha256"]


@pytest.mark.parametrize("since", sampled([0, 2], 1))
@pytest.mark.parametrize(
    "how",
    sampled([{"balance": "even"}, {"balance": "dynamic"}, {"exchange": "mapped"}], 1),
)
@pytest.mark.parametrize("most", sampled([0, 2], 0, 1))
def test_a_worker_out_of_memory_computes_fewer_shards_or_none(
    train, undisturbed, tmp_path, most, how, since
):
    keys = TASK | how | {"params": params({1: most}, since)}
    run = train(**keys, workers=2, run_dir=tmp_path / "run")

    assert (run["status"], run["weights_sha256"]) == ("finished", undisturbed)
    (event,) = events_of(tmp_path / "run", "worker-out-of-memory")
    assert (event["rank"], event["cap"]) == (1, most)
    assert event["planned"] > most
    starts = [event["rank"] for event in events_of(tmp_path / "run", "worker-started")]
    assert starts.count(1) == (2 if most else 1), "it is started again only if it can compute"
    assert_each_step_once(tmp_path / "run", STEPS)
    shown = CliRunner().invoke(app.app, ["breakdown", str(tmp_path / "run")]).output
    limit = "it computes at most 2 shards of a step" if most else "the others compute its shards"
    assert f"rank 1 ran out of memory: {limit}" in shown


@pytest.mark.full
def test_a_run_that_tolerates_no_more_workers_without_memory_says_so(train, tmp_path):
    job = TASK | {"params": params({1: 0, 2: 0}), "restarts": {"limit": 1}}
    with pytest.raises(OutOfMemory, match="restart budget exhausted: more than 1 failures"):
        train(**job, workers=3, run_dir=tmp_path / "run")


def test_a_shard_that_fits_nowhere_ends_the_run_with_what_helps(train, tmp_path):
    with pytest.raises(OutOfMemory) as caught:
        train(**TASK, workers=2, params=params({0: 0, 1: 0}), run_dir=tmp_path / "run")
    assert "set shards=16 for shards of 4 samples, not 8" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert re.match(r"rank \d ran out of memory", str(caught.value))
    events = events_of(tmp_path / "run", "worker-out-of-memory")
    assert sorted(event["rank"] for event in events) == [0, 1], "none is tried again"
    exited = {e["rank"]: e for e in events_of(tmp_path / "run", "worker-exited") if e["error"]}
    for rank, event in exited.items():
        assert history.words(event).startswith(f"rank {rank} ran out of memory")
    assert exited
