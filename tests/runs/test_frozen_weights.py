"""Frozen tensors that the workers of a host share are no state, and are the same everywhere."""

import json
from pathlib import Path

import pytest

from conftest import events_of, killing
from holdfast.errors import HoldfastError, JobError
from zygote_client import locked

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parent / "frozen_tasks.py"


def places(folder):
    """Where a job reads the seed of its base, and what it leaves; all below one folder."""
    folder.mkdir(exist_ok=True)
    if not (folder / "seed").exists():
        (folder / "seed").write_text("1")
    return {
        "seed": str(folder / "seed"),
        "mark": str(folder / "builds"),
        "cache": str(folder / "bases"),
    }


@pytest.fixture
def weights(reference, keys, shared_folder):
    """Weights of an undisturbed run of that job."""
    with locked(shared_folder / "frozen-weights.lock"):
        params = places(shared_folder / "frozen-weights")
    return reference(workers=1, **keys() | {"params": params})


@pytest.fixture
def keys(tmp_path):
    """The keys of a job of 24 steps."""
    params = places(tmp_path)

    def made(**more):
        own = {
            name: more.pop(name)
            for name in ("odd", "writes", "replaces", "damages")
            if name in more
        }
        return {
            "task": f"{TASKS}:train",
            "params": params | own,
            "batch": 240,
            "epochs": 4,
            "shards": 4,
            **more,
        }

    return made


def builds(tmp_path):
    return len((tmp_path / "builds").read_text().splitlines())


def manifest(run_dir):
    (path, *_) = sorted(run_dir.glob("checkpoints/step-*/manifest.json"))
    return json.loads(path.read_text())


def test_the_weights_do_not_depend_on_workers_nor_failures(train, tmp_path, keys):
    run_dir, kept = tmp_path / "run", {"every_steps": 5}
    reference = train(run_dir=tmp_path / "reference", workers=1, **keys(checkpoint=kept))
    result = train(
        run_dir=run_dir,
        watch=killing(run_dir, step=7, rank=1),
        workers=2,
        **keys(checkpoint=kept),
    )
    assert events_of(run_dir, "worker-exited")
    assert result["weights_sha256"] == reference["weights_sha256"]
    assert builds(tmp_path) == 1  # in neither worker, nor in the replacement, nor in the second run
    stored = manifest(run_dir)
    assert {t["name"].split("#")[0] for t in stored["tensors"]}.isdisjoint(
        {"model.frozen", "model.scale"}
    )
    assert stored["size_bytes"] < 4 * 256 * 64 * 4  # AdamW holds three copies of the adapter
    assert list(stored["user_state"]["bases"]) == ["layer"]


def test_a_run_resumes_on_the_same_base_only(train, weights, tmp_path, keys):
    run_dir = tmp_path / "run"
    train(run_dir=run_dir, workers=2, **keys(epochs=2))
    again = {"run_dir": run_dir, "resume": True, "workers": 2, "extend": True}
    (tmp_path / "seed").write_text("2")
    with pytest.raises(JobError, match=r"was trained on the base layer \(.*\), not on layer"):
        train(**again, **keys())
    (tmp_path / "seed").write_text("1")
    assert train(**again, **keys())["weights_sha256"] == weights


def test_a_worker_with_another_base_is_refused_by_name(train, tmp_path, keys):
    with pytest.raises(JobError, match=r"rank \d has another base of frozen weights"):
        train(workers=3, **keys(odd=str(tmp_path / "first")))


def test_a_write_to_a_base_ends_the_worker_and_its_log_shows_where(train, tmp_path, keys):
    run_dir = tmp_path / "run"
    with pytest.raises(HoldfastError, match="rank 0 was killed by SIGSEGV; see"):
        train(run_dir=run_dir, workers=1, **keys(writes=True, restarts={"limit": 0}))
    log = (run_dir / "logs" / "rank-0.log").read_text()
    line = next(n for n, text in enumerate(TASKS.read_text().splitlines(), 1) if "add_(1)" in text)
    assert f'frozen_tasks.py", line {line} in train' in log


def test_a_base_that_changes_under_a_run_is_found_and_built_again(train, weights, tmp_path, keys):
    run_dir = tmp_path / "run"
    damaged = str(tmp_path / "damaged")
    result = train(
        run_dir=run_dir, workers=2, **keys(damages=damaged, checkpoint={"every_steps": 0})
    )
    (exited,) = [e for e in events_of(run_dir, "worker-exited") if e["unexpected"]]
    assert "has a base layer that has changed since it was verified" in exited["cause"]
    assert builds(tmp_path) == 2
    # Without a checkpoint all steps are computed again, on the base that was built again.
    assert result["weights_sha256"] == weights


def test_a_replaced_tensor_of_a_base_is_refused(train, keys):
    with pytest.raises(JobError, match="was replaced during training"):
        train(workers=2, **keys(replaces=True))


def test_a_tensor_of_a_base_cannot_be_trained(train):
    with pytest.raises(JobError, match="is a tensor of a base, which is read-only"):
        train(workers=1, task=f"{TASKS}:train_frozen")


def test_ddp_leaves_frozen_weights_alone(train, keys):
    result = train(workers=2, sync="ddp", **keys(shards=2))
    assert result["steps"] == 24
