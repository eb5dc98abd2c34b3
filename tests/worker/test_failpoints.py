"""Failpoints inject a requested fault once, when it is due, into the right bits."""

import errno
import math

import pytest
import torch

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.memory import Arena, Word
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.arena.worker_status import WorkerStatus
from holdfast.worker.failpoints import Failpoints, flip


@pytest.fixture
def arena():
    made = Arena.create(2)
    yield made
    made.close()


def failpoints_of(arena, rank):
    return Failpoints(FaultRequests(arena, rank), WorkerStatus(arena, rank))


@pytest.fixture
def failpoints(arena):
    return failpoints_of(arena, 1)


@pytest.fixture
def replica():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    trained = Trained(model=model, optimizers=(torch.optim.AdamW(model.parameters()),))
    layout = replica_layout(trained)
    return Replica(trained, layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


def requested(arena, kind, step=0, seconds=0.0):
    found = FaultRequests(arena, 1)
    found.request(kind, step=step, seconds=seconds)
    return found


def parameter(gradient):
    found = torch.nn.Parameter(torch.zeros(()) if gradient is None else torch.zeros_like(gradient))
    found.grad = gradient
    return found


def test_a_fault_is_injected_once_from_its_step_on(arena, failpoints, replica):
    requests = requested(arena, InProcessFault.RAISE, step=3)
    failpoints.at_step(replica)
    arena[1, Word.COMMITTED] = 4
    with pytest.raises(RuntimeError, match="injected fault"):
        failpoints.at_step(replica)
    failpoints.at_step(replica)
    assert requests.acknowledged(InProcessFault.RAISE) == (1, 4)
    assert requests.request(InProcessFault.RAISE, step=5, seconds=0) == 2
    failpoints.at_step(replica)
    assert requests.is_pending(InProcessFault.RAISE)


def test_a_request_is_for_one_worker_and_one_kind(arena, failpoints, replica):
    requests = requested(arena, InProcessFault.RAISE)
    failpoints_of(arena, 0).at_step(replica)
    failpoints.at_part()
    assert requests.is_pending(InProcessFault.RAISE)


def test_a_withdrawn_request_injects_nothing(arena, failpoints, replica):
    requests = requested(arena, InProcessFault.EXIT)
    requests.withdraw(InProcessFault.EXIT)
    failpoints.at_step(replica)
    assert requests.acknowledged(InProcessFault.EXIT) == (0, 0)


def test_corruption_flips_one_bit_of_any_kind_of_state(arena, failpoints, replica):
    kinds = set()
    for step in range(40):
        before = replica.flat.clone()
        requested(arena, InProcessFault.CORRUPT, step=step)
        arena[1, Word.COMMITTED] = step
        failpoints.at_step(replica)
        changed = (replica.flat ^ before).nonzero().flatten().tolist()
        assert len(changed) == 1
        flipped = int((replica.flat ^ before)[changed[0]])
        assert flipped & (flipped - 1) == 0
        (entry,) = replica.entries_between(changed[0], changed[0] + 1)
        assert entry.name not in replica.uninitialized
        kinds.add(entry.name)
    assert {"model.0.weight", "model.1.running_var", "model.1.num_batches_tracked"} <= kinds


def test_a_full_disk_is_an_os_error(arena, failpoints):
    requested(arena, InProcessFault.DISK_FULL)
    with pytest.raises(OSError, match="No space left") as caught:
        failpoints.at_part()
    assert caught.value.errno == errno.ENOSPC
    failpoints.at_part()


def test_a_nan_is_put_into_one_value(arena, failpoints):
    requested(arena, InProcessFault.NAN)
    scalar, matrix = torch.ones(()), torch.ones(2, 3)
    failpoints.at_gradient([parameter(g) for g in (None, torch.ones(0), scalar, matrix)])
    assert bool(scalar.isnan())
    assert bool(matrix.isfinite().all())


@pytest.mark.parametrize("value", [0.01, -1.5, 3.0, math.inf])
def test_a_flip_makes_a_float16_infinite(value):
    gradient = torch.tensor([0.001, value], dtype=torch.float16)
    assert flip([gradient]) == math.isfinite(value)
    assert gradient.isfinite().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [0.01, -1.5, 3.0, 1e-3])
def test_a_flip_sets_the_highest_free_bit_of_the_largest_value(dtype, value):
    small = torch.full((3,), value / 8, dtype=dtype)
    large = torch.zeros(2, 2, dtype=dtype).t()  # as the gradient of a transposed weight may be
    large[1, 0] = value
    before = large.clone()
    assert flip([small, large])
    assert torch.equal(small, torch.full((3,), value / 8, dtype=dtype))
    assert before.ne(large).nonzero().tolist() == [[1, 0]]
    factor = float(large[1, 0].double() / before[1, 0].double())
    assert not math.isfinite(factor) or math.log2(factor) in [1 << bit for bit in range(11)]


def test_a_flip_skips_zeros_and_values_that_are_not_finite(arena, failpoints):
    requests = requested(arena, InProcessFault.FLIP)
    gradient = torch.zeros(2)
    failpoints.at_gradient([parameter(gradient)])
    failpoints.at_gradient([])
    gradient[0] = torch.nan
    failpoints.at_gradient([parameter(gradient)])
    assert requests.is_pending(InProcessFault.FLIP)
    gradient[0] = 0.5
    failpoints.at_gradient([parameter(gradient)])
    assert requests.acknowledged(InProcessFault.FLIP) == (1, 0)
