"""The larger models keep the promise: the same weights, whoever computes and however."""

import pytest

from conftest import TASKS, back_to, metrics_of, sampled
from holdfast.job.load import check
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.tasks import reference

pytestmark = pytest.mark.slow

IMAGES = {
    "data": {"name": "synthetic-images", "size": 80, "height": 8, "augment": True},
    "batch": 32,
    "shards": 4,
}
TEXT = {"data": {"name": "text", "length": 16, "path": str(TASKS)}, "batch": 200, "shards": 4}
TINY = {"width": 16, "heads": 2, "layers": 2, "dropout": 0.2}

JOBS = {
    "resnet18": {**IMAGES, "model": {"name": "resnet18", "width": 4}},
    "resnet50": {**IMAGES, "model": {"name": "resnet50", "width": 2}},
    "gpt": {**TEXT, "task": "language", "model": {"name": "gpt", **TINY}},
    "gpt2": {**TEXT, "task": "language", "model": {"name": "gpt2", **TINY}},
    "bert": {**TEXT, "task": "masked-language", "model": {"name": "bert", **TINY}},
}


@pytest.fixture(scope="module")
def forks():
    """A fork server that has imported transformers, where that is installed."""
    job = check(JOBS["gpt2"], where="test")
    needed = reference.imported_by(job.task, job.model)
    with ForkServer(spawn(WORKER), needed) as server:
        yield server


@pytest.fixture(params=sampled(JOBS, 2))
def job(request):
    if request.param in ("gpt2", "bert"):
        pytest.importorskip("transformers")
    return {**JOBS[request.param], "checkpoint": {"every_steps": 3, "keep": 9}}


@pytest.mark.soak
def test_weights_are_the_same_for_any_workers_across_resume_and_recomputed(train, job, tmp_path):
    whole = train(run_dir=tmp_path / "run", **job)["weights_sha256"]
    for workers in (2, 4):
        assert train(workers=workers, **job)["weights_sha256"] == whole
    recomputed = {**job, "model": {**job["model"], "gradient_checkpointing": True}}
    assert train(workers=2, **recomputed)["weights_sha256"] == whole
    back_to(tmp_path / "run", 3)
    resumed = train(run_dir=tmp_path / "run", resume=True, workers=3, **job)
    assert resumed["weights_sha256"] == whole


@pytest.mark.soak
def test_workers_find_the_library_imported(train):
    pytest.importorskip("transformers")
    assert train(task=f"{TASKS}:imported", workers=2)["status"] == "finished"


@pytest.mark.parametrize("name", sampled(["gpt2", "bert"], 0))
def test_a_language_model_learns_more_than_the_frequencies_of_bytes(train, name, tmp_path):
    pytest.importorskip("transformers")
    text = tmp_path / "text"
    text.write_bytes(b"tide" * 1000)
    data = {"name": "text", "length": 16, "path": str(text)}
    result = train(**{**JOBS[name], "data": data, "batch": 20, "epochs": 4})
    assert result["metrics"]["byte_entropy_bits"] == 2.0
    assert result["metrics"]["bits_per_byte"] < 1.0


@pytest.mark.soak
def test_gradient_checkpointing_may_be_changed_when_a_run_is_resumed(train, tmp_path):
    keys = {**JOBS["gpt"], "checkpoint": {"every_steps": 3, "keep": 9}}
    whole = train(run_dir=tmp_path / "run", **keys)
    back_to(tmp_path / "run", 3)
    keys["model"] = {**keys["model"], "gradient_checkpointing": True}
    resumed = train(run_dir=tmp_path / "run", resume=True, **keys)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert len(metrics_of(tmp_path / "run")) > 3
