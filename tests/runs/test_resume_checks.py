"""What a resumed run compares with the run that it continues, and refuses by name."""

import json
import shutil

import pytest
import torch

from conftest import TASKS, back_to, events_of, result_of, sampled
from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

SAVING = {"checkpoint": {"every_steps": 4, "keep": 9}}


def newest(run):
    """The manifest of the newest checkpoint."""
    store = CheckpointStore.of_run(run)
    return store.manifest(store.committed()[0])


def rewrite(run, **fields):
    """Change what the newest manifest says, and its digest with it."""
    found = newest(run).model_copy(update=fields)
    path = run / "checkpoints" / names.checkpoint_name(found.step) / MANIFEST
    path.write_text(found.sealed().model_dump_json())


@pytest.mark.soak
def test_a_checkpoint_copied_from_another_run_is_refused_by_the_key_that_differs(train, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    whole = train(run_dir=run, **SAVING)["weights_sha256"]
    train(run_dir=other, seed=1, **SAVING)
    back_to(run, 4)
    shutil.copytree(other / "checkpoints" / "step-00000008", run / "checkpoints" / "step-00000008")
    assert train(run_dir=run, resume=True, **SAVING)["weights_sha256"] == whole
    (refused,) = events_of(run, "checkpoint-rejected")
    assert "is of a job with seed=1, not 0" in refused["reason"]
    assert events_of(run, "generation-started")[-1]["last_committed_step"] == 0
    assert (run / "checkpoints" / "step-00000008.rejected-1").is_dir()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without a GPU")
def test_a_key_that_ends_a_resumed_run_is_not_kept(train, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir=run_dir)
    job = (run_dir / "job.yaml").read_bytes()
    with pytest.raises(JobError, match="device=cuda, but"):
        train(run_dir=run_dir, resume=True, device="cuda")
    assert (run_dir / "job.yaml").read_bytes() == job
    train(run_dir=run_dir, resume=True, workers=2)
    assert (run_dir / "job.yaml").read_bytes() != job


def test_a_run_on_one_machine_is_bit_exact(train, tmp_path):
    run = tmp_path / "run"
    assert train(run_dir=run, **SAVING)["exactness"] == "bit-exact"
    back_to(run, 4)
    assert train(run_dir=run, resume=True, workers=2, **SAVING)["exactness"] == "bit-exact"
    assert events_of(run, "numerics-changed") == []
    first, second = events_of(run, "kernels-tested")  # one a life
    assert first["alignment_sensitive"] == second["alignment_sensitive"]
    assert newest(run).numerics["torch"]


def test_a_resume_on_other_software_is_recorded_for_good(train, once, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(once(**SAVING), run)
    back_to(run, 4)
    stored = newest(run).numerics
    rewrite(run, numerics={**stored, "torch": "2.0.0", "MKL_CBWR": "COMPATIBLE"})
    result = train(run_dir=run, resume=True, workers=2, **SAVING)
    changes = f"torch 2.0.0 → {stored['torch']}, MKL_CBWR COMPATIBLE → AUTO"
    assert result["exactness"] == f"order-exact: {changes}"
    (event,) = events_of(run, "numerics-changed")
    assert (event["step"], event["changes"]) == (4, changes)
    back_to(run, 8)
    again = train(run_dir=run, resume=True, **SAVING)
    assert again["exactness"] == f"order-exact: {changes}"
    assert len(events_of(run, "numerics-changed")) == 1


@pytest.mark.parametrize(
    ("numerics", "says"),
    [
        pytest.param("exact", "order-exact", marks=pytest.mark.soak),
        pytest.param("mixed", "every sample once, replicas equal; the bits depend on which host"),
    ],
)
def test_the_workers_own_environment_counts(train, once, tmp_path, monkeypatch, numerics, says):
    keys = {**SAVING, "numerics": numerics}
    run = tmp_path / "run"
    shutil.copytree(once(**keys), run)
    assert result_of(run)["exactness"] == "bit-exact"
    back_to(run, 4)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # a stand-in for another processor
    said = train(run_dir=run, resume=True, on=None, **keys)["exactness"]
    assert said.startswith(says)
    assert said.endswith(": ONEDNN_MAX_CPU_ISA unset → AVX2")


@pytest.mark.soak
def test_a_resume_on_other_software_fails_where_the_job_says_so(train, once, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(once(**SAVING), run)
    back_to(run, 4)
    stored = newest(run).numerics
    rewrite(run, numerics={**stored, "processor": "i386"})
    with pytest.raises(
        JobError, match=r"step 4 was made on other .*: processor i386 → .*on_numerics_change"
    ):
        train(run_dir=run, resume=True, workers=2, on_numerics_change="fail", **SAVING)
    assert newest(run).step == 4
    assert train(run_dir=run, resume=True, **SAVING)["status"] == "finished"


@pytest.mark.parametrize(
    ("keys", "why"),
    sampled(
        [
            ({"numerics": "fast"}, "not exact: numerics=fast"),
            ({"sync": "ddp"}, "not exact: sync=ddp"),
        ],
        0,
    ),
    ids=["fast", "ddp"],
)
def test_a_run_that_is_not_exact_does_not_claim_to_be(train, keys, why):
    assert train(epochs=1, **keys)["exactness"] == why


def test_a_checkpoint_of_an_older_version_is_loaded_and_not_compared(train, tmp_path):
    run = tmp_path / "run"
    whole = train(run_dir=run, **SAVING)["weights_sha256"]
    back_to(run, 4)
    path = run / "checkpoints" / "step-00000004" / MANIFEST
    plain = json.loads(path.read_text())
    for absent in ("numerics", "numerics_changes", "sha256"):
        del plain[absent]
    del plain["order"]["samples"], plain["weights_config"]["compile"]
    path.write_text(Manifest.model_validate(plain).sealed().model_dump_json(exclude_unset=True))
    assert "numerics" not in json.loads(path.read_text())
    assert train(run_dir=run, resume=True, **SAVING)["weights_sha256"] == whole
    assert events_of(run, "checkpoint-rejected") == []
    assert newest(run).order["samples"]


@pytest.mark.parametrize("loaders", sampled([0, 1], 1))
def test_other_samples_in_the_same_number_are_refused_by_name(train, tmp_path, loaders):
    run, values = tmp_path / "run", tmp_path / "values.json"
    keys = {
        **SAVING,
        "task": f"{TASKS}:from_file",
        "params": {"values": str(values)},
        "batch": 5,
        "shards": 2,
        "loader": {"workers": loaders},
    }
    values.write_text(json.dumps([*range(20)]))
    whole = train(run_dir=run, **keys)["weights_sha256"]
    back_to(run, 4)
    values.write_text(json.dumps([*range(19), 77]))
    with pytest.raises(JobError, match="Values holds other samples than when the run began"):
        train(run_dir=run, resume=True, workers=2, **keys)
    values.write_text(json.dumps([*range(20)]))
    assert train(run_dir=run, resume=True, **keys)["weights_sha256"] == whole


@pytest.mark.soak
def test_samples_that_differ_when_read_again_are_not_compared(train, tmp_path):
    run = tmp_path / "run"
    keys = {**SAVING, "task": f"{TASKS}:never_the_same", "batch": 5, "shards": 2}
    train(run_dir=run, **keys)
    assert newest(run).order["samples"] == ""
    back_to(run, 4)
    assert train(run_dir=run, resume=True, **keys)["status"] == "finished"
