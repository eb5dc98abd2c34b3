"""The time that the worker of a script waits in collectives."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.worker.script.runner import CollectiveTimes


@pytest.fixture
def status():
    made = WorkerStatus(Arena.create(1), 0)
    made.claim()
    made.enter(Phase.FORWARD)
    return made


@pytest.fixture
def group(status, monkeypatch):
    """A process group of this process alone, whose collectives are measured."""
    for kind, name in ((dist.Work, "wait"), (DistributedDataParallel, "forward")):
        monkeypatch.setattr(kind, name, getattr(kind, name))  # to be undone
    CollectiveTimes(status).begin()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def waited(status):
    return status.times()[Phase.REDUCE]


def test_time_within_time_is_counted_once_and_the_phase_continues(status):
    start = outer = status[Word.PHASE_SINCE]
    inner = time.monotonic_ns()
    status.count(Phase.REDUCE, inner)
    first = status[Word.PHASE_SINCE] - inner
    assert status[Word.PHASE_TIMES + Phase.REDUCE] == first
    assert status[Word.PHASE_TIMES + Phase.FORWARD] == inner - start
    between = status[Word.PHASE_SINCE]
    status.count(Phase.REDUCE, outer)
    end = status[Word.PHASE_SINCE]
    assert status[Word.PHASE_TIMES + Phase.REDUCE] == first + end - between
    assert status[Word.PHASE_TIMES + Phase.FORWARD] == inner - start
    assert status[Word.PHASE] == Phase.FORWARD


@pytest.mark.parametrize(
    "call",
    [
        lambda: dist.all_reduce(torch.ones(1)),
        lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
        dist.barrier,
        lambda: dist.broadcast_object_list([1]),
    ],
)
def test_collectives_that_python_waits_for_are_measured(group, status, call):
    call()
    assert waited(status) > 0


@pytest.mark.parametrize("output", [lambda y: y, lambda y: {"unused": 2 * y, "y": (y, 1)}])
def test_the_wait_for_gradients_of_other_workers_is_measured(group, status, output):
    class Model(torch.nn.Linear):
        def forward(self, x):
            return output(super().forward(x))

    model = DistributedDataParallel(Model(2, 1))
    before = waited(status)
    y = model(torch.ones(1, 2))
    assert waited(status) == before
    (y["y"][0] if isinstance(y, dict) else y).sum().backward()
    assert waited(status) > before
    assert model.module.weight.grad is not None
