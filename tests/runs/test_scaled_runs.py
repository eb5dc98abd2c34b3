"""Runs that get another number of workers while they train."""

import pytest

from conftest import events_of, metrics_of
from holdfast.errors import JobError
from holdfast.job import JOB_FILE, load
from holdfast.runs.coordinator_process import scale

pytestmark = pytest.mark.slow

JOB = {"shards": 4, "epochs": 3}


def paced(folder, **params):
    """A job that trains slowly until a file appears; see `paced_tasks`."""
    given = {"hurry": str(folder / "hurry"), "steps": 40, **params}
    return {"task": "paced_tasks:main", "params": given, "batch": 32, "shards": 4}


def scaling(run_dir, sizes, scaled):
    """Give the run each size at its step, then let it end; see `watching`."""
    left = dict(sizes)

    def watch(committed):
        if left and committed >= next(iter(left)):
            scaled.append(scale(run_dir, left.pop(next(iter(left)))))
        if not left:
            (run_dir.parent / "hurry").touch()

    return watch


def sizes_of(run_dir):
    return [len(event["members"]) for event in events_of(run_dir, "generation-started")]


def steps_of(run_dir):
    return [line["step"] for line in metrics_of(run_dir) if "loss" in line]


def test_a_run_that_is_scaled_ends_with_the_same_weights_and_computes_no_step_again(
    train, tmp_path
):
    run_dir, scaled = tmp_path / "run", []
    watch = scaling(run_dir, {2: 4, 4: 1, 6: 3}, scaled)
    job = paced(tmp_path)
    result = train(run_dir=run_dir, workers=2, max_workers=4, watch=watch, **job)
    assert [each.before for each in scaled] == [2, 4, 1]
    assert sizes_of(run_dir) == [2, 4, 1, 3]
    assert steps_of(run_dir) == list(range(1, result["steps"] + 1))
    assert result["weights_sha256"] == train(**job)["weights_sha256"]


@pytest.mark.full
def test_with_ddp_all_workers_restart_from_a_checkpoint_in_the_new_size(train, tmp_path):
    run_dir, scaled = tmp_path / "run", []
    watch = scaling(run_dir, {2: 2}, scaled)
    keys = {"sync": "ddp", "checkpoint": {"every_steps": 1}}
    job = paced(tmp_path) | keys
    result = train(run_dir=run_dir, workers=1, max_workers=2, watch=watch, **job)
    assert sizes_of(run_dir) == [1, 2]
    assert steps_of(run_dir) == list(range(1, result["steps"] + 1))


def test_a_model_that_is_divided_keeps_its_workers_until_it_is_resumed(tmp_path):
    job = load.check(
        {"data": {"name": "digits"}, "parallel": {"zero": 3}, "workers": 4}, where="job"
    )
    (tmp_path / JOB_FILE).write_text(load.dump(job))
    for workers in (2, 8):
        with pytest.raises(
            JobError, match=f"divided over them; .* resume it with workers={workers}"
        ):
            scale(tmp_path, workers)


def test_a_size_without_capacity_is_refused_and_changes_nothing(train, tmp_path):
    run_dir, refused = tmp_path / "run", []

    def watch(committed):
        if committed >= 2 and not refused:
            for workers in (5, 3):
                with pytest.raises(JobError) as error:
                    scale(run_dir, workers)
                refused.append(str(error.value))

    train(run_dir=run_dir, workers=2, watch=watch, **JOB)
    assert all("can have 2 workers at most" in each for each in refused)
    assert len(refused) == 2
    assert sizes_of(run_dir) == [2]
    with pytest.raises(JobError, match="while it trains"):
        scale(run_dir, 2)
