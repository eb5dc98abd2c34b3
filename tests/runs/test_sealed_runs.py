"""Signed and encrypted runs end with the same weights, also after damage, without being asked."""

import shutil

import pytest

from conftest import SMALL, change_last_byte, events_of
from holdfast.api.train import run_job
from holdfast.checkpoint.exports.weights import digest, load_weights
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.runs.run import LaunchOptions
from keys import encryption_key, seal_of, signing_key

pytestmark = pytest.mark.slow


@pytest.fixture
def start(forks, tmp_path):
    """Start or resume the run of a job: `start(resume=…, sign=…, encrypt=…) -> Result`."""

    def begin(*, resume=False, accept_older=False, **files):
        settings = {
            "every_steps": 4,
            "busy": "wait",
            "keep": 9,
            **{key: str(path) for key, path in files.items()},
        }
        request = load.request({**SMALL, "workers": 2, "checkpoint": settings}, where="test")
        options = LaunchOptions(forks=forks)
        return run_job(
            request,
            options,
            run_dir=tmp_path / "run",
            resume=resume,
            accept_older=accept_older,
        )

    return begin


def test_a_sealed_run_resumes_by_itself_from_its_newest_good_checkpoint(start, reference, tmp_path):
    files = {"sign": signing_key(tmp_path / "sign"), "encrypt": encryption_key(tmp_path / "key")}
    run = tmp_path / "run"
    assert start(**files).weights_sha256 == reference(2)
    store = CheckpointStore.of_run(run, seal_of(**files))
    eight, twelve = (store.manifest(f"step-{step:08}") for step in (8, 12))
    assert all(part.encryption for part in twelve.parts)
    part = run / "checkpoints" / "step-00000012" / "part-0-of-1.safetensors"
    change_last_byte(part)
    assert start(resume=True, **files).weights_sha256 == reference(2)
    (rejected, *_) = events_of(run, "checkpoint-rejected")
    assert (
        "part-0-of-1.safetensors: chunk 0 of the state does not match its tag"
        in (rejected["reason"])
    )
    again = store.manifest("step-00000012")
    assert (again.root, again.parent.root) == (twelve.root, eight.root)
    assert digest(load_weights(run))  # with the key that the run's job names
    assert events_of(run, "code-changed") == []


def test_a_run_is_not_resumed_with_another_key_nor_without_its_newest_checkpoint(
    start, reference, tmp_path
):
    key, other = (encryption_key(tmp_path / name) for name in ("key", "other"))
    run = tmp_path / "run"
    start(encrypt=key)
    with pytest.raises(JobError, match=r"is encrypted with key .*, and .*/other holds key"):
        start(resume=True, encrypt=other)
    other.chmod(0o644)
    with pytest.raises(JobError, match=r"other users can read .*/other \(mode 0644\)"):
        start(resume=True, encrypt=other)
    assert CheckpointStore.of_run(run).newest().step == 12
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    with pytest.raises(JobError, match=r"lost the checkpoint of step 12, .* of step 8 now"):
        start(resume=True, encrypt=key)
    resumed = start(resume=True, accept_older=True, encrypt=key)
    assert resumed.weights_sha256 == reference(2)
