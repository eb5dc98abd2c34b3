"""Models and optimizers as people have them: groups, schedules, several models, frozen parts."""

import shutil
from pathlib import Path

import pytest
import torch

from conftest import back_to, events_of, metrics_of, sampled
from holdfast.checkpoint.exports.weights import find_checkpoint, read_checkpoint
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("attach_tasks.py")


def own(name, **keys):
    plain = {"data": None, "model": None, "schedule": {"name": "constant"}, "clip_norm": None}
    return {**plain, "task": f"{TASKS}:{name}", "batch": 32, "shards": 4, **keys}


@pytest.mark.soak
@pytest.mark.parametrize("task", sampled(["unfreezing", "two_models"], 1))
def test_failures_and_resumes_do_not_affect_such_models(train, tmp_path, task):
    mark = tmp_path / "mark"
    keys = own(task, checkpoint={"every_steps": 6}, params={"mark": str(mark), "at": 8})
    alone = train(**keys)
    mark.touch()
    killed = train(tmp_path / "killed", workers=3, **keys)
    assert killed["weights_sha256"] == alone["weights_sha256"]
    assert len(events_of(tmp_path / "killed", "worker-exited")) == 1
    assert metrics_of(tmp_path / "killed")[-1]["lr"] == metrics_of(tmp_path / "run-1")[-1]["lr"]
    mark.touch()
    resumed = train(tmp_path / "resumed", workers=2, on_failure="restart", **keys)
    assert resumed["weights_sha256"] == alone["weights_sha256"]
    started = events_of(tmp_path / "resumed", "generation-started")
    assert [event["step"] for event in started] == [0, 6]


def test_a_scheduler_may_clear_the_state_of_its_optimizer(train):
    assert train(**own("clears_momentum"))["steps"] == 3


def test_random_numbers_before_the_loop_are_the_same_everywhere(train, tmp_path):
    one, two = train(**own("drawn", seed=1)), train(**own("drawn", seed=1, workers=2))
    assert one["weights_sha256"] == two["weights_sha256"]
    first, second = (metrics_of(tmp_path / f"run-{number}")[0]["logged"] for number in (1, 2))
    assert first == second
    assert len(set(first.values())) == 6


@pytest.mark.parametrize(
    ("task", "message"),
    sampled(
        [
            ("built", "session.attach was given a Linear; give it a function that builds one"),
            ("unnamed", "to train several models, give each a name"),
            ("shared", "two optimizers hold one.bias; give each its own parameters"),
            ("plateau", "ReduceLROnPlateau is stepped with a metric"),
        ],
        0,
        2,
    ),
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(train, task, message):
    with pytest.raises(JobError, match=message):
        train(**own(task))


def test_an_operation_without_a_deterministic_kernel_is_refused_unless_numerics_are_fast(train):
    keys = own("without_deterministic_kernel")
    with pytest.raises(JobError, match=r"put_ has no deterministic kernel .* numerics=fast") as one:
        train(**keys)
    assert "torch.zeros(3).put_" in str(one.value.__cause__)
    assert train(**keys, numerics="fast")["steps"] == 3


def test_ranks_with_unlike_numerics_are_refused_unless_numerics_are_fast(train):
    keys = own("other_precision_on_rank_1", workers=2)
    with pytest.raises(JobError, match=r"workers have different numerics: fp32_prec"):
        train(**keys)
    assert train(**keys, numerics="fast")["steps"] == 3


@pytest.mark.parametrize(
    "keys",
    sampled(
        [{"exchange": "arena"}, {"exchange": "mapped", "device": "cpu"}, {"sync": "ddp"}], 0, 2
    ),
)
def test_replicas_stay_equal_where_a_rank_computes_other_updates(train, tmp_path, keys):
    keys = keys | {
        "numerics": "exact" if "sync" in keys else "mixed",
        "checkpoint": {"every_steps": 1},
    }
    run = tmp_path / "run"
    result = train(run_dir=run, **own("other_updates_on_rank_1", workers=2, **keys))
    if "sync" not in keys:
        assert result["exactness"].startswith("every sample once, replicas equal; the bits depend")
    (differ,) = events_of(run, "updates-differ")
    assert (differ["step"], differ["ranks"], differ["donor"]) == (1, [1], 0)
    # A checkpoint is committed only if all replicas are equal.
    saved = {event["step"] for event in events_of(run, "checkpoint-committed")}
    assert saved == set(range(1, result["steps"] + 1))


def weights_of(run):
    return read_checkpoint(find_checkpoint(run))


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.is_contiguous()
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)


def test_a_channels_last_model_keeps_its_strides_through_kills_and_resumes(train, tmp_path):
    mark, last = tmp_path / "mark", tmp_path / "channels-last"
    params = {"mark": str(mark), "channels_last": str(last), "at": 4}
    keys = own("images", batch=8, clip_norm=0.5, checkpoint={"every_steps": 3}, params=params)
    plain, alone, two = (tmp_path / name for name in ("plain", "alone", "two"))
    contiguous = train(plain, **keys)
    last.touch()
    sha256 = train(alone, **keys)["weights_sha256"]
    assert train(exchange="alone", workers=1, **keys)["weights_sha256"] == sha256
    mark.touch()
    assert train(two, workers=2, **keys)["weights_sha256"] == sha256
    assert len(events_of(two, "worker-exited")) == 1
    # Kernels may round otherwise by format; values at another index would be far off.
    assert_close(weights_of(alone), weights_of(plain))
    back_to(two, 6)
    assert train(two, resume=True, **keys)["weights_sha256"] == sha256
    # A run that was begun in the other format.
    shutil.copytree(plain, tmp_path / "copy")
    results = []
    for run, workers in ((plain, 1), (tmp_path / "copy", 2)):
        back_to(run, 6)
        results.append(train(run, resume=True, workers=workers, **keys)["weights_sha256"])
        assert_close(weights_of(run), weights_of(alone))
    assert results[0] == results[1]
    last.unlink()
    back_to(alone, 3)
    train(alone, resume=True, **keys)
    assert_close(weights_of(alone), weights_of(two))
    assert contiguous["steps"] == 9
