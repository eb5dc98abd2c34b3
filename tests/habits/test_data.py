"""Data as people read them by habit: order, weights of shards, and the same data everywhere."""

from pathlib import Path

import data_tasks
import pytest
import torch
import torch.nn.functional as F

from conftest import back_to, events_of, metrics_of
from holdfast.errors import JobError
from holdfast.worker.progress import Progress, note_facts

TASKS = Path(__file__).with_name("data_tasks.py")


def own(name, **keys):
    plain = {"data": None, "model": None, "schedule": {"name": "constant"}, "clip_norm": None}
    return {**plain, "task": f"{TASKS}:{name}", "batch": 10, "shards": 2, **keys}


def steps_of(run):
    return [line for line in metrics_of(run) if "loss" in line]


@pytest.mark.slow
def test_a_loader_that_does_not_shuffle_is_read_in_order(train, tmp_path):
    result = train(workers=2, **own("in_order", batch=16, epochs=1))
    steps = steps_of(tmp_path / "run-1")
    assert [step["logged"]["number"] for step in steps] == pytest.approx([7.5, 23.5, 35.5])
    assert result["metrics"]["number"] == pytest.approx(9.6)  # of what the sampler names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "loaders"),
    [
        ("weighted", 0),
        ("own", 2),
        pytest.param("generator", 0, marks=pytest.mark.full),
        pytest.param("own", 0, marks=pytest.mark.full),
    ],
)
def test_a_kill_and_a_resume_keep_the_order_of_a_sampler(train, tmp_path, sampler, loaders):
    params = {"sampler": sampler, "loaders": loaders, "mark": str(tmp_path / "mark"), "at": 7}
    saving = {"every_steps": 4, "keep": 9}
    keys = own("sampled", epochs=4, params=params, checkpoint=saving)
    alone = train(**keys)
    assert alone["steps"] == 12  # of 30 samples an epoch
    run = tmp_path / "killed"
    (tmp_path / "mark").touch()
    killed = train(run, workers=2, **keys)
    assert (killed["weights_sha256"], killed["metrics"]) == (
        alone["weights_sha256"],
        alone["metrics"],
    )
    assert len(events_of(run, "worker-exited")) == 1
    back_to(run, 8)
    resumed = train(run, resume=True, workers=1, **keys)
    assert resumed["weights_sha256"] == alone["weights_sha256"]
    back_to(run, 8)
    (tmp_path / "changed").touch()
    with pytest.raises(JobError, match=r"began with first_epoch=\w+ in session.shards and now has"):
        train(run, resume=True, workers=2, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["criterion", "loader", "stream"])
def test_samples_that_a_collate_function_drops_weigh_nothing(train, tmp_path, kind):
    model = data_tasks.wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    left = data_tasks.Y > 0 if kind == "criterion" else data_tasks.LEFT
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(data_tasks.X[left]).squeeze(1), data_tasks.Y[left])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(model(data_tasks.X[left]).squeeze(1), data_tasks.Y[left])
    keys = own("dropping", batch=40, epochs=3, params={"kind": kind})
    for number, shards in enumerate((1, 20), start=1):
        result = train(workers=min(2, shards), **{**keys, "shards": shards})
        steps = steps_of(tmp_path / f"run-{number}")
        assert steps[-1]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert result["metrics"]["error"] == pytest.approx(error.item(), rel=1e-5)


@pytest.mark.slow
def test_a_step_without_any_sample_is_refused(train):
    with pytest.raises(JobError, match=r"no shard of step 1 called .* samples in every batch"):
        train(workers=2, **own("damaged"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("split", "rank 0 and rank 1 have different data: some samples differ; have every worker"),
        ("sampler", "rank 0 and rank 1 have different data: their samplers draw other samples;"),
        ("evaluated", "the workers evaluate on different data; have every worker build the same"),
        pytest.param(
            "length", "have different data: .*num_samples: 3., 3.", marks=pytest.mark.full
        ),
    ],
)
def test_data_that_differ_between_workers_are_refused(train, tmp_path, kind, message):
    with pytest.raises(JobError, match=message) as refused:
        train(workers=2, **own("unlike", epochs=3, params={"kind": kind}))
    assert "\n" not in str(refused.value)
    steps = steps_of(tmp_path / "run-1")
    assert len(steps) == {"sampler": 4, "evaluated": 4}.get(kind, 0)


@pytest.mark.slow
def test_a_replacement_with_other_data_is_refused(train, tmp_path):
    (tmp_path / "mark").touch()
    params = {"kind": "split", "mark": str(tmp_path / "mark"), "at": 1}
    with pytest.raises(JobError, match="list holds other samples than when the run began"):
        train(**own("unlike", params=params))


@pytest.mark.slow
def test_data_that_differ_whenever_they_are_read_are_not_compared(train):
    assert train(workers=2, **own("unlike", params={"kind": "flipped"}))["status"] == "finished"


def test_a_run_that_has_shuffled_does_not_continue_in_order():
    old = {"num_samples": 40, "batch_size": 10, "seed": 0}
    facts = {**old, "sampler": "shuffle=True"}
    progress = Progress(order=old)
    note_facts(progress, facts, extend=False)
    assert progress.order == facts
    with pytest.raises(JobError, match=r"began with sampler=shuffle=True .* has shuffle=False"):
        note_facts(Progress(order=old), {**facts, "sampler": "shuffle=False"}, extend=False)
