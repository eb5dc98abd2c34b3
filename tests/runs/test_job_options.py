"""Settings of the step and the evaluation, each as a user sees it."""

import pytest
import torch

from conftest import events_of, metrics_of
from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_mixed_precision_is_exact_too_and_rounds_otherwise(train):
    full = train()
    mixed = [train(precision="bf16", workers=workers) for workers in (1, 2, 3)]
    assert len({result["weights_sha256"] for result in mixed}) == 1
    assert mixed[0]["weights_sha256"] != full["weights_sha256"]
    assert mixed[0]["loss"] == pytest.approx(full["loss"], rel=0.05)


@pytest.mark.soak
def test_a_compiled_model_is_exact_too(train):
    """Five shards of an uneven batch, so that workers meet the shapes in different orders."""
    keys = {"compile": True, "batch": 180, "shards": 5, "epochs": 1}
    hashes = {train(workers=workers, **keys)["weights_sha256"] for workers in (1, 2)}
    assert len(hashes) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(train):
    with pytest.raises(JobError, match=r"device=cuda, but torch .* finds no GPU .* set device=cpu"):
        train(device="cuda")


def test_the_best_checkpoint_outlives_newer_ones(train, tmp_path):
    """With a learning rate that falls apart after the first epoch, the first one is the best."""
    run = tmp_path / "run"
    result = train(
        run_dir=run,
        optimizer={"name": "sgd", "lr": 30.0},
        schedule={"name": "constant", "warmup_steps": 60},
        epochs=6,
        evaluation={"best": "test_loss", "goal": "min"},
        checkpoint={"every_steps": 3, "keep": 1},
    )
    evaluations = {line["step"]: line["evaluation"]["test_loss"] for line in metrics_of(run)
                   if "evaluation" in line}  # fmt: skip
    best = min(evaluations, key=evaluations.get)
    assert best < result["steps"]
    assert result["best"] == {"step": best, "value": evaluations[best]}
    kept = [names.step_of(name) for name in CheckpointStore.of_run(run).committed()]
    assert kept == [result["steps"], best]


def test_a_run_ends_early_when_nothing_gets_better_and_stays_ended(train, tmp_path):
    run = tmp_path / "run"
    keys = {
        "optimizer": {"name": "sgd", "lr": 1e-12},
        "schedule": {"name": "constant"},
        "epochs": 20,
        "evaluation": {"best": "accuracy", "patience": 3},
    }
    first = train(run_dir=run, **keys)
    evaluated = [line["step"] for line in metrics_of(run) if "evaluation" in line]
    assert (first["status"], len(evaluated)) == ("finished", 4)
    assert first["steps"] == evaluated[-1] < 120
    assert first["best"]["step"] == evaluated[0]
    again = train(run_dir=run, resume=True, workers=2, **keys)
    assert again["weights_sha256"] == first["weights_sha256"]
    assert again["steps"] == first["steps"]


def test_evaluations_can_be_rarer_and_the_last_epoch_is_always_evaluated(train, tmp_path):
    train(run_dir=tmp_path / "run", epochs=5, evaluation={"every_epochs": 2})
    evaluated = [line["step"] for line in metrics_of(tmp_path / "run") if "evaluation" in line]
    assert evaluated == [12, 24, 30]


def test_a_metric_that_is_not_measured_is_named(train):
    with pytest.raises(JobError, match=r"best=acuracy is not measured; .* accuracy, test_loss"):
        train(evaluation={"best": "acuracy"})


def test_the_seconds_of_a_run_are_reported_by_what_they_were_spent_on(train, tmp_path):
    seconds = train(run_dir=tmp_path / "run", workers=2)["seconds"]
    assert {
        "data",
        "forward",
        "backward",
        "collect",
        "reduce",
        "optimizer",
        "wait",
        "evaluate",
    } <= seconds.keys()
    assert all(value >= 0 for value in seconds.values())
    assert events_of(tmp_path / "run")[-1]["event"] == "run-ended"
