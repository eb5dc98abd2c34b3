"""Which evaluation is the best one."""

import math

import pytest

from holdfast.checkpoint.manifest import Best
from holdfast.errors import JobError
from holdfast.job.settings import Evaluation
from holdfast.worker.loop.followups import best_after


@pytest.mark.parametrize(
    ("goal", "value", "is_better"),
    [
        ("max", 0.6, True),
        ("max", 0.5, False),
        ("min", 0.4, True),
        ("min", 0.6, False),
        ("max", math.nan, False),
        ("min", math.nan, False),
    ],
)
def test_the_best_evaluation_is_kept(goal, value, is_better):
    before = Best(value=0.5, step=4, since=2)
    found = best_after(before, Evaluation(best="score", goal=goal), 8, {"score": value})
    assert found == (Best(value=value, step=8) if is_better else Best(value=0.5, step=4, since=3))


def test_the_first_evaluation_is_the_best_so_far():
    found = best_after(Best(), Evaluation(best="loss", goal="min"), 8, {"loss": 3.0})
    assert found == Best(value=3.0, step=8)


def test_a_metric_that_is_not_measured_is_named():
    with pytest.raises(JobError, match=r"evaluation.best=score is not measured; .* loss"):
        best_after(Best(), Evaluation(best="score"), 8, {"loss": 3.0})
