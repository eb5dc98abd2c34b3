"""Section 4: one job has one set of weights, however its steps are computed."""

import pytest
from checked_device import DEVICE, ON_GPU, on_cpu

from conftest import back_to

pytestmark = pytest.mark.slow

JOB = {"device": DEVICE, "epochs": 1, "clip_norm": None}
IMMEDIATE = {"non_finite": "recompute"}
"""With it a step waits for its result before it changes anything."""


def ways(shards):
    """Ways to compute the steps of a job of some shards: numbers of workers, and other keys."""
    alone = [(1, {"exchange": each}) for each in ("auto", "alone", "mapped", "arena")]
    several = [
        (workers, {"exchange": each})
        for workers in ((2, 3) if ON_GPU else (2,))
        for each in ("auto", "mapped", "staged", "arena")
    ]
    uneven = (2, {"exchange": "auto", "shards_per_worker": (1, shards - 1)})
    return [*alone, (1, IMMEDIATE), *([*several, uneven] if shards > 2 else [])]


@pytest.mark.parametrize(
    ("shards", "precision"),
    on_cpu([(s, p) for s in (1, 3, 8) for p in ("fp32", "bf16")], 2),
)
def test_workers_and_exchanges_give_the_same_weights(train, record_property, shards, precision):
    hashes = {
        train(workers=workers, shards=shards, precision=precision, **JOB, **keys)["weights_sha256"]
        for workers, keys in ways(shards)
    }
    record_property("weights_sha256", min(hashes))
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "keys",
    on_cpu([{"clip_norm": 0.5}, {"precision": "fp16"}, {"compile": True, "shards": 2}], 1),
    ids=str,
)
def test_norms_scales_and_compiled_kernels_do_not_depend_on_the_workers(train, keys):
    one, two = (train(workers=workers, **JOB | keys) for workers in (1, 2))
    assert one["weights_sha256"] == two["weights_sha256"]


@pytest.mark.skipif(not ON_GPU, reason="tests/runs does so on a CPU")
def test_checkpoints_are_whole_and_a_run_resumes_from_them(train, command_line, tmp_path):
    keys = JOB | {"workers": 2, "checkpoint": {"every_steps": 3}}
    whole = train(run_dir=tmp_path / "run", **keys)
    assert command_line("checkpoint", "verify", str(tmp_path / "run"))[0] == 0
    back_to(tmp_path / "run", 3)
    resumed = train(run_dir=tmp_path / "run", resume=True, **keys)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
