"""Evaluations that are not means, in real runs."""

from pathlib import Path

import pytest

from conftest import events_of
from holdfast.api.train import run_job
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluated(forks, tmp_path):
    """Run the task: `evaluated(workers, key=value, …) -> result`."""

    def run(workers, resume=False, **keys):
        task = f"{Path(__file__).with_name('metric_tasks.py')}:measured"
        params = {"mark": str(tmp_path / "mark")}
        given = {"task": task, "batch": 20, "shards": 4, "workers": workers, "params": params}
        job = load.check(given | keys, where="test")
        path = tmp_path / f"run-{workers}"
        return run_job(job, LaunchOptions(forks=forks), run_dir=path, resume=resume)

    return run


def test_metrics_that_are_not_means_survive_a_kill_in_the_middle(evaluated):
    best = {"evaluation": {"best": "all.auc"}}
    alone, killed = evaluated(1, **best), evaluated(3, **best)
    exits = [e for e in events_of(killed.run_dir) if e["event"] == "worker-exited"]
    assert sum(e["unexpected"] for e in exits) == 1
    assert killed.weights_sha256 == alone.weights_sha256
    assert killed.evaluations == alone.evaluations
    assert killed.evaluations["step"] == [5, 10, 15]
    assert sum(map(sum, killed.metrics["all.confusion"])) == 90
    assert killed.best["value"] == max(killed.evaluations["all.auc"])
    assert len(set(killed.evaluations["right"])) == 1
    assert killed.evaluations["all.none"] == [None] * 3
    store = CheckpointStore.of_run(killed.run_dir)
    kept = store.manifest(killed.checkpoint.name).metrics
    assert kept["all.confusion"] == killed.metrics["all.confusion"]
    again = evaluated(3, resume=True, **best)
    assert again.metrics["all.confusion"] == killed.metrics["all.confusion"]


def test_the_best_evaluation_needs_a_number(evaluated):
    with pytest.raises(JobError, match=r"evaluation.best=all.confusion is a list"):
        evaluated(1, evaluation={"best": "all.confusion"})
