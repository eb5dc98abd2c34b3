"""`holdfast bench parallel`: a divided model, compared with stock PyTorch."""

import random

import pytest
import torch

from holdfast_bench import parallel
from holdfast_bench.peers import parallel_script
from holdfast_bench.workloads import WORKLOADS


@pytest.mark.soak
def test_every_way_to_divide_a_model_trains_in_less_memory():
    ways = parallel.trainings("large", microbatches=4, steps=4)
    rows = {row["way"]: row for row in parallel.training_rows("large", ways, rounds=1)}
    assert {way: row["failed"] for way, row in rows.items()} == dict.fromkeys(ways, 0)
    assert rows["zero=3"]["memory_of_whole"] < 0.8
    assert rows["pipeline=2"]["memory_of_whole"] < 0.8


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_way_to_divide_a_model_recovers():
    ways = parallel.recoveries("lm", microbatches=4, chance=random.Random(0))
    rows = {row["way"]: row for row in parallel.recovery_rows("lm", ways, rounds=1)}
    assert {way: row["failed"] for way, row in rows.items()} == dict.fromkeys(ways, 0)
    assert rows["zero=3"]["of_stock"] < 1
    assert rows["pipeline=2"]["of_stock"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("workload", parallel.DIVIDED)
def test_the_stages_of_stock_pytorch_are_the_whole_model(workload):
    whole = WORKLOADS[workload]().model()
    first, last = (parallel_script.stage_of(whole, rank, stages=2) for rank in range(2))
    x, _ = WORKLOADS[workload]().draw(2, torch.Generator())
    assert torch.equal(last(first(x)), whole(x))
