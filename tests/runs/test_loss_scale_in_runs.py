"""Mixed precision with float16: all workers scale losses and skip steps alike."""

import json

import pytest
from faulty_tasks import marks

from conftest import TASKS, events_of, metrics_of, result_of, sampled
from holdfast.errors import NonFiniteError

pytestmark = pytest.mark.slow

SCALED = {
    "task": f"{TASKS.with_name('scaled_tasks.py')}:main",
    "precision": "fp16",
    "batch": 20,
    "shards": 4,
    "clip_norm": 1.0,
}
OVERFLOWS = {"overflows": [2, 5], "factor": 1e5, "faults": []}
"""Gradients of the third and the sixth of twenty steps overflow at scales of 2^12 and above."""
SCALES = [2**16] * 3 + [2**15] * 3 + [2**14] * 14


@pytest.fixture
def exact(train, once, tmp_path):
    """Run the task and compare it with a run of one worker; returns the directory of the run."""

    def run(faults=(), **keys):
        alone = result_of(once(**SCALED, params=OVERFLOWS))
        path = tmp_path / "run"
        params = {**OVERFLOWS, "faults": list(faults)}
        result = train(run_dir=path, **{**SCALED, "params": params, **keys})
        assert result["weights_sha256"] == alone["weights_sha256"]
        assert result["exactness"] == "bit-exact"
        assert (scales(path), skipped(path)) == (SCALES, [3, 6])
        return path

    return run


def scales(run_dir):
    return [entry["scale"] for entry in metrics_of(run_dir) if "loss" in entry]


def skipped(run_dir):
    return [entry["step"] for entry in metrics_of(run_dir) if entry.get("skipped")]


def failures(run_dir):
    return [event for event in events_of(run_dir) if event["event"] == "worker-exited"]


@pytest.mark.parametrize("workers", sampled([1, 2, 3], 2))
def test_all_workers_skip_what_overflows_and_halve_the_scale(exact, workers):
    path = exact(workers=workers)
    losses = [entry["loss"] for entry in metrics_of(path) if "loss" in entry]
    assert all(loss < 0.1 for step, loss in enumerate(losses) if step not in (2, 5))
    assert all(10 < losses[step] < 5000 for step in (2, 5))  # as user code has given it
    newest = max((path / "checkpoints").glob("step-*"))
    manifest = json.loads((newest / "manifest.json").read_text())
    assert manifest["loss_scale"] == {"log2": 14, "good_steps": 14}


@pytest.mark.parametrize("when", sampled(["before", "after"], 0))
@pytest.mark.parametrize("on_failure", sampled(["replace", "shrink"], 0))
def test_a_worker_that_dies_when_a_step_is_skipped_changes_nothing(
    exact, tmp_path, on_failure, when
):
    """Before it commits the skipped step, or right after it has."""
    kill = {"at": "holdfast.worker.step.tree:commit_step", "when": when, "rank": 1, "step": 2}
    kill |= {"how": "kill", "mark": str(tmp_path / "mark")}
    path = exact([kill], workers=2, on_failure=on_failure)
    assert marks([kill]) == [True]
    assert [each["rank"] for each in failures(path) if each["status"]] == [1]


def test_a_restarted_run_continues_with_its_scale(exact, tmp_path):
    """It fails in the step after the skipped one, of which there is a checkpoint."""
    fault = {"at": "holdfast.worker.step.tree:TreeStepper.commit", "when": "before", "rank": 0}
    fault |= {"step": 3, "how": "raise", "mark": str(tmp_path / "mark")}
    exact([fault], checkpoint={"every_steps": 3}, on_failure="restart", workers=2)
    assert marks([fault]) == [True]


def test_a_worker_that_computes_wrongly_is_not_taken_for_an_overflow(exact, tmp_path):
    poison = {"at": "holdfast.worker.step.tree:TreeStepper._collect", "when": "before"}
    poison |= {"how": "poison", "rank": 1, "step": 7, "mark": str(tmp_path / "mark")}
    path = exact([poison], workers=2, non_finite="recompute")
    assert marks([poison]) == [True]
    assert [each["rank"] for each in failures(path) if each["status"]] == [1]


@pytest.mark.soak
def test_recomputed_shards_that_overflow_are_equal(exact):
    exact(workers=2, non_finite="recompute", verify={"recompute": 1})


@pytest.mark.soak
def test_a_sum_of_merged_shards_is_scaled_too(train, tmp_path):
    for name, keys in {"ddp": {"sync": "ddp"}, "fast": {"numerics": "fast"}}.items():
        path = tmp_path / name
        train(run_dir=path, **SCALED, params=OVERFLOWS, workers=2, **keys)
        assert (scales(path), skipped(path)) == (SCALES, [3, 6])


@pytest.mark.parametrize("non_finite", sampled(["stop", "recompute"], 0))
def test_a_loss_that_is_not_finite_at_any_scale_ends_the_run(train, tmp_path, non_finite):
    params = {**OVERFLOWS, "overflows": list(range(20)), "factor": float(2**70)}
    keys = {**SCALED, "workers": 2, "params": params}
    with pytest.raises(NonFiniteError, match=r"in step 17 is not finite"):
        train(run_dir=tmp_path / "run", **keys, non_finite=non_finite)
    assert scales(tmp_path / "run") == [2**k for k in range(16, 0, -1)]


@pytest.mark.soak
def test_half_precision_learns_as_well_as_single(train):
    keys = {"model": {"name": "mlp"}, "epochs": 6, "batch": 64}
    full, half = (train(**keys, precision=precision) for precision in ("fp32", "fp16"))
    assert half["weights_sha256"] != full["weights_sha256"]
    assert half["metrics"]["accuracy"] == pytest.approx(full["metrics"]["accuracy"], abs=0.005)
