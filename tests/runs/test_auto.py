"""Numbers that a run finds by itself: `shards: auto` and `workers: auto`."""

import pytest

from conftest import FAILING_TASKS, SMALL, watching
from holdfast.errors import JobError, OutOfMemory
from holdfast.job import load
from holdfast.runs import choose_workers
from holdfast.runs.run import LaunchOptions
from holdfast.runs.supervisor import Controls
from holdfast.runs.train import run_job


@pytest.mark.parametrize(
    ("keys", "divided"),
    [
        ({}, [(1, 6, 1), (2, 3, 2), (3, 2, 3), (6, 1, 6)]),
        ({"max_workers": 3}, [(1, 6, 3), (2, 3, 3), (3, 2, 3)]),
        ({"shards": 2}, [(1, 6, 2), (2, 3, 2)]),
        ({"batch": 2}, [(1, 6, 1), (2, 3, 2)]),
        ({"threads_per_worker": 4}, [(1, 4, 1)]),
        ({"threads_per_worker": 1}, [(6, 1, 6)]),
    ],
)
def test_cores_are_divided_as_the_job_allows(keys, divided):
    request = load.request({"workers": "auto", **keys}, where="test")
    jobs = choose_workers.divisions(request, cores=6)
    assert [(job.workers, job.threads_per_worker, job.shards) for job in jobs] == divided


@pytest.mark.parametrize(
    ("rates", "workers", "said"),
    [
        ({(1, 4): 100, (2, 4): 96, (2, 2): 105}, 2, "100 with 1 worker of 2 threads, 96 with"),
        ({(1, 4): 100, (2, 4): 90, (1, 1): 105}, 1, "workers=auto: 1 worker of 2 threads; "),
        ({(1, 4): 50, (2, 4): 90, (2, 2): 108}, 2, "shards=2 reaches 108 samples/s, 20% more"),
        ({(1, 4): 50, (2, 2): 108}, 1, "2 workers of 1 thread failed: no memory"),
    ],
)
def test_the_fastest_is_chosen_and_nearly_as_fast_with_more_workers(
    monkeypatch, capsys, rates, workers, said
):
    def measured(job, _):
        if (job.workers, job.shards) not in rates:
            raise OutOfMemory("no memory")
        return rates[job.workers, job.shards]

    monkeypatch.setattr(choose_workers, "_samples_per_s", measured)
    request = load.request({"workers": "auto", "shards": 4}, where="test")
    jobs = choose_workers.divisions(request, cores=2)
    assert choose_workers.fastest(jobs, None).workers == workers
    printed = capsys.readouterr().err
    assert said in printed
    assert ("costs time" in printed) == ("20%" in said)


@pytest.fixture
def train(forks, tmp_path):
    """Train from a request: `train(name, resume, stop_at, key=value, …) -> result`."""

    def run(name, *, resume=False, stop_at=None, **keys):
        request = load.request({**SMALL, "shards": "auto", **keys}, where="test")
        controls, path = Controls(), tmp_path / name

        def watch(step):
            controls.stop |= stop_at is not None and step >= stop_at

        with watching(path, watch):
            options = LaunchOptions(forks=forks, controls=controls)
            return run_job(request, options, run_dir=path, resume=resume)

    return run


@pytest.mark.soak
@pytest.mark.slow
def test_a_run_keeps_the_shards_of_its_first_start(train, tmp_path):
    reference = train("reference", workers=2, epochs=4)
    assert load.of_run(reference.run_dir).shards == 2
    stopped = train("run", workers=2, epochs=4, stop_at=1)
    assert stopped.status == "stopped"
    with pytest.raises(JobError, match="at most 2 workers, or start a new run with max_workers=3"):
        train("run", workers=3, epochs=4, resume=True)
    resumed = train("run", workers=1, epochs=4, resume=True)
    assert resumed.weights_sha256 == reference.weights_sha256
    assert load.of_run(resumed.run_dir).shards == 2


@pytest.mark.slow
def test_workers_are_measured_once_and_kept(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("holdfast.runs.train.usable_cores", lambda: 2)
    first = train("run", workers="auto", epochs=1)
    said = capsys.readouterr().err
    assert "workers=auto: measuring 1 worker of 2 threads, 2 workers of 1 thread\n" in said
    job = load.of_run(first.run_dir)
    assert (job.workers, job.threads_per_worker, job.shards) in {(1, 2, 1), (2, 1, 2)}
    assert f"workers=auto: {job.workers} worker" in said
    assert "; samples/s: " in said
    assert job.checkpoint.every_steps == 100  # unlike the trials'
    resumed = train("run", workers="auto", epochs=1, resume=True)
    assert resumed.weights_sha256 == first.weights_sha256
    assert load.of_run(first.run_dir) == job
    assert "workers=auto" not in capsys.readouterr().err


@pytest.mark.soak
def test_a_job_that_fails_in_a_trial_fails_as_its_run_would(train, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.runs.train.usable_cores", lambda: 2)
    with pytest.raises(JobError, match=r"call session\.attach"):
        train("run", workers="auto", task=f"{FAILING_TASKS}:no_attach", batch=20)
    assert not (tmp_path / "run").exists()
