"""`sync: ddp`: PyTorch's own data parallelism inside a run."""

import socket

import pytest

from conftest import FAILING_TASKS, back_to, metrics_of, sampled
from holdfast.errors import JobError, WorkerFailed

pytestmark = pytest.mark.slow

PLAIN = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [16]},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "schedule": {"name": "constant"},
    "batch": 250,
}
"""A job without chance in a step, so that cutting its batches otherwise changes nothing but the
rounding. The last batch of an epoch has 187 samples, which four workers share unevenly."""


def losses(run_dir):
    return [line["loss"] for line in metrics_of(run_dir) if "loss" in line]


@pytest.mark.parametrize(
    "keys",
    sampled(
        [
            {"workers": 2},
            {"workers": 2, "shards_per_worker": [7, 1]},
            {"workers": 3, "shards_per_worker": [5, 0, 3]},
            {"workers": 4, "clip_norm": 0.3},
        ],
        2,
    ),
    ids=str,
)
def test_uneven_batches_are_weighted_by_their_samples(train, tmp_path, keys):
    train(run_dir=tmp_path / "tree", **PLAIN, **keys)
    train(run_dir=tmp_path / "ddp", sync="ddp", **PLAIN, **keys)
    assert losses(tmp_path / "ddp") == pytest.approx(losses(tmp_path / "tree"), rel=1e-4)


def test_a_worker_without_samples_takes_part(train, tmp_path):
    keys = PLAIN | {"batch": 300, "epochs": 2}  # the last 237 leave the last two of eight empty
    train(run_dir=tmp_path / "tree", workers=4, shards=8, shards_per_worker=[2, 2, 2, 2], **keys)
    train(run_dir=tmp_path / "ddp", workers=4, shards=8, sync="ddp", **keys)
    assert losses(tmp_path / "ddp") == pytest.approx(losses(tmp_path / "tree"), rel=1e-4)


@pytest.mark.soak
def test_batch_statistics_are_the_same_on_all_workers_and_across_resume(train, tmp_path):
    whole = train(sync="ddp", workers=2)
    cut = tmp_path / "cut"
    train(run_dir=cut, sync="ddp", workers=2, checkpoint={"every_steps": 4})
    back_to(cut, 8)  # as if the run had ended before its last steps
    again = train(run_dir=cut, resume=True, sync="ddp", workers=2, checkpoint={"every_steps": 4})
    assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("task", "error", "message"),
    sampled(
        [
            ("dying", WorkerFailed, "rank 1 was killed by SIGKILL"),
            ("raising", WorkerFailed, "rank 1 raised ValueError: the data of step 2 are odd"),
            ("breaking", WorkerFailed, "rank 1 raised RuntimeError: this function has no gradient"),
            ("no_backward", JobError, "every worker must call session.backward for every batch"),
            ("exploding", JobError, "in step 4 is not finite"),
            ("leaving_early", JobError, "workers reached different barriers"),
            ("vector_loss", JobError, r"the loss must be a scalar"),
        ],
        1,
    ),
)
def test_the_worker_at_fault_is_named(train, task, error, message):
    keys = {"task": f"{FAILING_TASKS}:{task}", "batch": 20, "shards": 5, "workers": 2}
    with pytest.raises(error, match=message):
        train(sync="ddp", **keys)


def test_a_port_that_the_job_names_is_bound_to_this_host_only(train):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert train(sync="ddp", workers=2, port=port, epochs=1)["status"] == "finished"
