"""What a worker suffers by its own hand: when, once, and in which bits."""

import errno
import math

import pytest
import torch

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.orders import Order, Orders
from holdfast.transport.shared_memory import SharedMemoryGroup
from holdfast.worker import injection


@pytest.fixture
def group():
    arena = Arena.create(2)
    yield SharedMemoryGroup(arena, 1, timeout_s=1)
    arena.close()


def ordered(group, order, step=0, seconds=0.0):
    orders = Orders(group.arena, group.rank)
    orders.give(order, step=step, seconds=seconds)
    return orders


def parameter(gradient):
    found = torch.nn.Parameter(torch.zeros(()) if gradient is None else torch.zeros_like(gradient))
    found.grad = gradient
    return found


def test_an_order_is_obeyed_once_and_from_its_step_on(group):
    orders = ordered(group, Order.RAISE, step=3)
    injection.at_step(group)
    group.arena[1, Word.COMMITTED] = 4
    with pytest.raises(RuntimeError, match="a fault that was asked for"):
        injection.at_step(group)
    injection.at_step(group)
    assert orders.obeyed(Order.RAISE) == (1, 4)
    assert orders.give(Order.RAISE, step=5, seconds=0) == 2
    injection.at_step(group)
    assert orders.is_pending(Order.RAISE)


def test_an_order_is_for_one_worker_and_one_kind(group):
    orders = ordered(group, Order.RAISE)
    injection.at_step(SharedMemoryGroup(group.arena, 0, timeout_s=1))
    injection.at_part(group)
    assert orders.is_pending(Order.RAISE)


def test_an_order_that_is_withdrawn_is_not_obeyed(group):
    orders = ordered(group, Order.EXIT)
    orders.withdraw(Order.EXIT)
    injection.at_step(group)
    assert orders.obeyed(Order.EXIT) == (0, 0)


def test_orders_of_all_kinds_and_phases_have_words_of_their_own(group):
    for phase in Phase:
        group.arena.enter(1, phase)
    orders = Orders(group.arena, 1)
    for order in Order:
        orders.give(order, step=7, seconds=order + 0.5)
    assert [orders.obeyed(order) for order in Order] == [(0, 0)] * len(Order)
    group.arena[1, Word.COMMITTED] = 8
    assert [orders.obey(order) for order in Order] == [order + 0.5 for order in Order]
    assert [orders.obeyed(order) for order in Order] == [(1, 8)] * len(Order)
    assert not any(Orders(group.arena, 0).is_pending(order) for order in Order)


def test_a_full_disk_is_an_error_of_the_system(group):
    ordered(group, Order.DISK_FULL)
    with pytest.raises(OSError, match="No space left") as caught:
        injection.at_part(group)
    assert caught.value.errno == errno.ENOSPC
    injection.at_part(group)


def test_a_nan_is_put_into_one_value(group):
    ordered(group, Order.NAN)
    scalar, matrix = torch.ones(()), torch.ones(2, 3)
    injection.at_gradient(group, [parameter(g) for g in (None, torch.ones(0), scalar, matrix)])
    assert bool(scalar.isnan())
    assert bool(matrix.isfinite().all())


def test_a_withdrawal_in_the_moment_of_obedience_comes_too_late(group):
    orders = ordered(group, Order.NAN)
    assert orders.is_due(Order.NAN)
    orders.withdraw(Order.NAN)
    orders.obey(Order.NAN)
    assert orders.obeyed(Order.NAN) == (1, 0)
    assert orders.give(Order.NAN, step=0, seconds=0) == 2
    assert orders.is_pending(Order.NAN)


@pytest.mark.parametrize("value", [0.01, -1.5, 3.0, math.inf])
def test_a_flip_makes_a_float16_infinite(value):
    gradient = torch.tensor([0.001, value], dtype=torch.float16)
    assert injection.flip([gradient]) == math.isfinite(value)
    assert gradient.isfinite().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [0.01, -1.5, 3.0, 1e-3])
def test_a_flip_sets_the_highest_free_bit_of_the_largest_value(dtype, value):
    small = torch.full((3,), value / 8, dtype=dtype)
    large = torch.zeros(2, 2, dtype=dtype).t()  # as the gradient of a transposed weight may be
    large[1, 0] = value
    before = large.clone()
    assert injection.flip([small, large])
    assert torch.equal(small, torch.full((3,), value / 8, dtype=dtype))
    assert before.ne(large).nonzero().tolist() == [[1, 0]]
    factor = float(large[1, 0].double() / before[1, 0].double())
    assert not math.isfinite(factor) or math.log2(factor) in [1 << bit for bit in range(11)]


def test_zeros_and_what_is_no_number_already_are_passed_over(group):
    orders = ordered(group, Order.FLIP)
    gradient = torch.zeros(2)
    injection.at_gradient(group, [parameter(gradient)])
    injection.at_gradient(group, [])
    gradient[0] = torch.nan
    injection.at_gradient(group, [parameter(gradient)])
    assert orders.is_pending(Order.FLIP)
    gradient[0] = 0.5
    injection.at_gradient(group, [parameter(gradient)])
    assert orders.obeyed(Order.FLIP) == (1, 0)
