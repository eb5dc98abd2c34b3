"""`parallel`: code that needs whole weights where a worker has a part of them."""

from pathlib import Path

import pytest

from conftest import sampled
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("partial_weights_tasks.py")
BESIDE = "a worker has a part of the weights"
SAVED = "no worker has the values of a state dict"


@pytest.mark.parametrize(
    ("task", "parallel", "message"),
    sampled(
        [
            ("penalizing", {"zero": 3}, BESIDE),
            ("saving", {"pipeline": 2}, SAVED),
            ("by_layers", {"zero": 3}, BESIDE),
            ("by_layers", {"pipeline": 2}, BESIDE),
            ("penalizing", {"pipeline": 2}, BESIDE),
            ("saving", {"zero": 3}, SAVED),
        ],
        0,
        1,
    ),
    ids=str,
)
def test_weights_outside_the_model_are_refused(train, task, parallel, message):
    keys = {"task": f"{TASKS}:{task}", "batch": 16, "shards": 4, "workers": 2}
    with pytest.raises(JobError, match=message):
        train(parallel=parallel, **keys)
