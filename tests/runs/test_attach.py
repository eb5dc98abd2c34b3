"""Models and optimizers as people have them: groups, schedules, several models, frozen parts."""

from pathlib import Path

import pytest

from conftest import events_of, metrics_of, sampled
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
    with pytest.raises(JobError, match=r"rank 0 and rank 1 have different numerics: fp32_prec"):
        train(**keys)
    assert train(**keys, numerics="fast")["steps"] == 3
