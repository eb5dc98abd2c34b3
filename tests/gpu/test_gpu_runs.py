"""Runs on a GPU, which their workers share: the same promises as on CPUs."""

import json

import pytest

from conftest import events_of, killing, needs_gpu

pytestmark = [pytest.mark.slow, needs_gpu]

ON_GPU = {"device": "cuda", "checkpoint": {"every_steps": 3}}


@pytest.fixture(scope="module")
def known():
    """The weights of reference runs on the GPU by their epochs."""
    return {}


@pytest.fixture
def reference(train, known):
    def weights(**keys):
        name = str(keys)
        if name not in known:
            known[name] = train(workers=1, **ON_GPU, **keys)["weights_sha256"]
        return known[name]

    return weights


@pytest.mark.parametrize("workers", [2, 3])
def test_the_weights_do_not_depend_on_the_number_of_workers(train, reference, workers):
    assert train(workers=workers, **ON_GPU)["weights_sha256"] == reference()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("policy", ["replace", "restart"])
def test_a_killed_worker_does_not_change_the_weights(train, tmp_path, reference, workers, policy):
    run_dir = tmp_path / "run"
    result = train(
        run_dir=run_dir,
        watch=killing(run_dir, step=5, rank=workers - 1),
        workers=workers,
        on_failure=policy,
        epochs=4,
        **ON_GPU,
    )
    assert events_of(run_dir, "worker-exited")
    assert result["weights_sha256"] == reference(epochs=4)


def test_checkpoints_are_whole_and_a_run_resumes_from_them(
    train, command_line, tmp_path, reference
):
    run_dir = tmp_path / "run"
    train(run_dir=run_dir, workers=2, **ON_GPU)
    assert command_line("checkpoint", "verify", str(run_dir))[0] == 0
    newest = max((run_dir / "checkpoints").glob("step-*"))
    newest.rename(newest.with_suffix(".away"))  # as if the run had ended before its last steps
    resumed = train(run_dir=run_dir, resume=True, workers=2, **ON_GPU)
    assert resumed["weights_sha256"] == reference()


@pytest.mark.parametrize("keys", [{"precision": "bf16"}, {"precision": "fp16"}], ids=str)
def test_other_precisions_give_the_same_weights_on_any_number_of_workers(train, reference, keys):
    assert train(workers=2, **ON_GPU, **keys)["weights_sha256"] == reference(**keys)


def test_a_gpu_scores_far_more_than_its_host(command_line):
    _, output, _ = command_line("profile", "--json")
    (host,) = json.loads(output)["hosts"].values()
    scores = {device["kind"]: device["score"] for device in host["devices"]}
    assert scores["gpu"] > 3 * scores["cpu"]


def test_ddp_trains_on_a_shared_gpu(train):
    assert train(workers=2, sync="ddp", **ON_GPU)["steps"] == 12
