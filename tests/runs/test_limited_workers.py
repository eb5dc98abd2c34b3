"""A model whose state is larger than the memory of a worker trains on two."""

import pytest

from conftest import TASKS, memory_group
from holdfast.errors import HoldfastError

pytestmark = [pytest.mark.slow, pytest.mark.full]

LIMIT_BYTES = 450 << 20
"""A worker takes 640 MB with the whole model, and 270 MB with half of its state."""


@pytest.fixture
def group():
    """A control group with little memory."""
    with memory_group(LIMIT_BYTES) as made:
        yield made


def test_a_model_over_the_limit_of_a_worker_trains_on_two(train, tmp_path, group):
    keys = {
        "task": f"{TASKS.with_name('zero_tasks.py')}:limited",
        "batch": 4,
        "shards": 2,
        "workers": 2,
        "params": {"group": str(group)},
        "restarts": {"limit": 0},
    }
    with pytest.raises(HoldfastError, match=r"memory|SIGKILL"):
        train(run_dir=tmp_path / "whole", **keys)
    divided = train(run_dir=tmp_path / "divided", parallel={"zero": 3}, **keys)
    assert (divided["status"], divided["steps"]) == ("finished", 3)
