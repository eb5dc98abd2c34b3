"""Numbers that a run finds by itself: `shards: auto` and `workers: auto`."""

import pytest

from conftest import FAILING_TASKS, SMALL, TASKS, watching
from holdfast.api.resolve import shards as auto_shards
from holdfast.api.resolve import workers as auto_workers
from holdfast.api.resolve.trials import TimedStep
from holdfast.api.train import run_job
from holdfast.errors import JobError, OutOfMemory
from holdfast.job import load
from holdfast.runs.controls import Controls
from holdfast.runs.run import LaunchOptions


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
    jobs = auto_workers.divisions(request, cores=6)
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

    monkeypatch.setattr(auto_workers, "_samples_per_s", measured)
    request = load.request({"workers": "auto", "shards": 4}, where="test")
    jobs = auto_workers.divisions(request, cores=2)
    assert auto_workers.fastest(jobs, None).workers == workers
    printed = capsys.readouterr().err
    assert said in printed
    assert ("costs time" in printed) == ("20%" in said)


def unlike(**keys):
    request = load.request({"workers": 2, "balance": "dynamic", **keys}, where="test")
    return request.resolved()


@pytest.mark.parametrize(
    ("keys", "counts", "unmeasured"),
    [
        ({}, [2, 4, 8, 16, 32, 64], 16),
        ({"batch": 20}, [2, 4, 8, 16], 16),
        ({"batch": 9}, [2, 4, 8], 9),
        ({"batch": 1}, [2], 2),
        ({"workers": 3, "max_workers": 5}, [5, 10, 20, 40], 40),
        ({"workers": 256, "batch": 9999}, [256, 512, 1024, 2048, 4096], 2048),
    ],
)
def test_shards_are_doubled_as_long_as_each_has_a_sample(keys, counts, unmeasured):
    job = unlike(**keys)
    assert auto_shards.candidates(job) == counts
    assert job.shards == unmeasured


@pytest.mark.parametrize("keys", [{"sync": "ddp"}, {"numerics": "fast"}], ids=str)
def test_shards_that_form_one_batch_are_not_measured(keys):
    request = load.request({"workers": 2, "balance": "dynamic", **keys}, where="test")
    assert not request.weighs_shards
    assert request.resolved().shards == 16


def steps_of(shards, step_ms, shares):
    """Steps of two workers that compute alone, the second one 4 times slower."""
    first, second = shares
    shard_s = step_ms / 1000 / max(first, 4 * second)
    workers = {
        "rank": [0, 1],
        "shards": [first, second],
        "forward": [first * shard_s, 4 * second * shard_s],
    }
    return [TimedStep(24, step_ms / 1000, workers), TimedStep(6, 0.001, workers)]


SPLIT = {2: (1, 1), 4: (3, 1), 8: (6, 2), 16: (13, 3), 32: (26, 6)}


@pytest.mark.parametrize(
    ("step_ms", "shards", "said"),
    [
        (
            {2: 80, 4: 50, 8: 46, 16: 41, 32: 44},
            16,
            "16 instead of 8 cost 3.57 ms a step more and save 8.57 ms by the finer split",
        ),
        ({8: 46, 16: 41, 32: 44}, 16, "; 32 would cost 3 ms and save 0 ms\n"),
        ({2: 80, 4: 50, 8: 46, 16: 45.5}, 16, "ms a step: 80 with 2, 50 with 4, 46 with 8, 45.5"),
        ({2: 50, 4: 50.5, 8: 60, 16: 1}, 4, "4 shards; ms a step: 50 with 2, 50.5 with 4, 60 with"),
        ({4: 50, 8: 46}, 8, "2 shards failed: no memory"),
        ({2: 50, 4: 40, 8: 41.5}, 4, "8 would cost"),
        ({2: 50, 16: 10}, 2, "4 shards failed: no memory"),
    ],
)
def test_the_shards_with_the_fastest_steps_are_chosen(monkeypatch, capsys, step_ms, shards, said):
    def measured(job, *_):
        if job.shards not in step_ms:
            raise OutOfMemory("no memory")
        return steps_of(job.shards, step_ms[job.shards], SPLIT[job.shards])

    monkeypatch.setattr(auto_shards, "timed_steps", measured)
    assert auto_shards.with_best_shards(unlike(batch=32), LaunchOptions()).shards == shards
    assert said in capsys.readouterr().err


def test_shards_of_several_hosts_are_not_measured(capsys):
    job = unlike(hosts=2)
    assert auto_shards.with_best_shards(job, LaunchOptions()) == job
    assert "shards=auto: 16 shards; several hosts are not measured yet" in capsys.readouterr().err


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
    monkeypatch.setattr("holdfast.api.resolve.resolve.usable_cores", lambda: 2)
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
@pytest.mark.slow
def test_shards_are_measured_once_and_kept(train, monkeypatch, capsys):
    monkeypatch.setattr("holdfast.api.resolve.trials.TRIAL_S", 0.3)
    monkeypatch.setattr("holdfast.api.resolve.shards.DOUBLINGS", 2)
    task = f"{TASKS.parent / 'balance_tasks.py'}:by_sample"
    keys = {"task": task, "batch": 24, "workers": 2, "balance": "dynamic"}
    keys |= {"params": {"slow": {"1": 3}}, "epochs": 8, "data": None, "model": None}
    stopped = train("run", **keys, stop_at=1)
    said = capsys.readouterr().err
    assert "shards=auto: measuring 2, 4, 8 shards with balance=dynamic\n" in said
    job = load.of_run(stopped.run_dir)
    assert job.shards in {4, 8}
    assert f"shards=auto: {job.shards} shards; ms a step: " in said
    assert f"shards=auto: {job.shards} instead of {job.shards // 2} cost " in said
    assert job.checkpoint.every_steps == 100  # unlike the trials'
    resumed = train("run", **keys, resume=True)
    assert load.of_run(resumed.run_dir) == job
    assert "shards=auto" not in capsys.readouterr().err


@pytest.mark.soak
def test_a_job_that_fails_in_a_trial_fails_as_its_run_would(train, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.api.resolve.resolve.usable_cores", lambda: 2)
    with pytest.raises(JobError, match=r"call session\.attach"):
        train("run", workers="auto", task=f"{FAILING_TASKS}:no_attach", batch=20)
    assert not (tmp_path / "run").exists()
