"""One worker's steps: what it computes next, and that a step gives the weights of plain PyTorch."""

import contextlib
import copy
import math
import pickle

import pytest
import torch
from one_worker import (
    SHARDS,
    VOTE,
    batch,
    compute,
    finish,
    loss_of,
    model_of,
    replica_of,
    stepper_of,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.core.step.plan import Plan
from holdfast.errors import JobError
from holdfast.worker.step.commit import RequestFlags


@pytest.fixture
def width():
    return 4


@pytest.fixture
def model(width):
    return model_of(width=width)


@pytest.fixture
def replica(model):
    return replica_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@pytest.fixture
def precision():
    return "fp32"


@pytest.fixture(params=["arena", "alone"])
def exchange(request):
    return request.param


@pytest.fixture
def stepper(replica, precision, exchange):
    with stepper_of(replica, precision=precision, exchange=exchange) as found:
        yield found


def test_a_step_gives_the_weights_of_plain_pytorch(stepper, model):
    plain = model_of()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        committed = finish(stepper, model, step)
        assert (committed.step, committed.outcome().skipped) == (step, False)
        assert committed.requests == RequestFlags.SAVE
        mean, found = plain[1].running_mean, []
        start = mean.clone()
        for shard in range(SHARDS):
            mean.copy_(start)  # from which every shard begins
            (loss_of(plain, shard) / SHARDS).backward()
            found.append(mean.clone())
        mean.copy_(torch.stack(found).mean(0))
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))
        torch.testing.assert_close(model[1].running_mean, mean)


class Casts(TorchDispatchMode):
    """Counts the tensors of a shape that are cast to bfloat16."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        cast = func is torch.ops.aten._to_copy.default and kwargs["dtype"] is torch.bfloat16
        self.count += cast and args[0].shape == self.shape
        return func(*args, **kwargs or {})


def forward(stepper, model, *, skips=False):
    """Compute the next shard under autocast, or only look at its loss; returns the casts of the
    last weight.
    """
    work = stepper.next_work()
    stepper.begin_shard(work, seed=work.item.leaf)
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.set_grad_enabled(not skips),
        Casts(model[2].weight.shape) as casts,
    ):
        loss = loss_of(model, work.item.leaf)
    if not skips:
        stepper.backward(loss, 1 / SHARDS, scale=1)
    stepper.end_shard()
    return casts.count


@pytest.mark.parametrize("precision", ["bf16"])
def test_weights_are_cast_once_per_step(stepper, model):
    for step in range(2):
        before = model[2].weight.clone()
        assert [forward(stepper, model) for _ in range(SHARDS)] == [1, 0, 0, 0]
        stepper.commit(step, VOTE, scale=1)
        assert not before.equal(model[2].weight)


@pytest.mark.parametrize("precision", ["bf16"])
def test_a_cast_without_a_gradient_is_not_kept(stepper, model):
    assert forward(stepper, model, skips=True) == 1
    assert [forward(stepper, model) for _ in range(SHARDS - 1)] == [1, 0, 0]
    stepper.commit(0, VOTE, scale=1)
    alone = model[2].weight.clone()
    other = model_of()
    for shard in range(1, SHARDS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(other, shard)
        (loss / (SHARDS - 1)).backward()
    expected = other[2].weight.detach() - 0.1 * other[2].weight.grad
    torch.testing.assert_close(alone, expected, rtol=0.02, atol=0.02)


def test_shards_are_computed_in_order_and_none_twice(stepper, model):
    leaves = []
    while work := stepper.next_work():
        assert not work.is_check
        leaves.append(work.item.leaf)
        compute(stepper, model, work)
    assert leaves == list(range(SHARDS))


def test_a_shard_without_samples_weighs_nothing(stepper, model):
    stepper.skip_shard(stepper.next_work())
    finish(stepper, model, 0)
    other = model_of()
    for shard in range(1, SHARDS):
        (loss_of(other, shard) / (SHARDS - 1)).backward()
    expected = [p.detach() - 0.1 * p.grad for p in other.parameters()]
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


def test_a_restarted_step_is_computed_from_the_beginning(stepper, model, replica):
    finish(stepper, model, 0)
    flat = replica.flat.clone()
    finish(stepper, model, 1)
    expected = replica.flat.clone()
    replica.flat.copy_(flat)  # as a donor's state would
    stepper.restart()
    compute(stepper, model, stepper.next_work())
    half = stepper.next_work()
    stepper.begin_shard(half, seed=0)
    loss = loss_of(model, half.item.leaf)
    stepper.restart()
    stepper.backward(loss, 1 / SHARDS, scale=1)  # of a shard that is discarded meanwhile
    stepper.end_shard()
    assert stepper.next_work().item.leaf == 0
    finish(stepper, model, 1)
    assert torch.equal(replica.flat, expected)


def test_a_plan_can_change_between_two_steps(stepper, model):
    finish(stepper, model, 0)
    stepper.assign(1, Plan(counts=(2, 2)))
    assert [item.leaf for item in stepper.work_items] == [0, 1]
    assert stepper.next_work().item.leaf == 0


def test_merged_shards_are_computed_again_by_the_plan_after_a_failure(replica, model, exchange):
    with stepper_of(replica, numerics="fast", exchange=exchange) as stepper:
        work = stepper.next_work()
        compute(stepper, model, work)
        assert stepper.next_work() is None
        stepper.resume(0)  # in a generation with the same members
        assert stepper.next_work() == work


@pytest.mark.parametrize("exchange", ["arena"])
@pytest.mark.parametrize("width", [20_000])  # so that weights have blocks of their own
def test_a_lent_gradient_is_whole_when_a_new_plan_adds_shards_to_it(stepper, model, width):
    stepper.assign(0, Plan(counts=(1,)))
    compute(stepper, model, stepper.next_work())
    stepper.assign(0, Plan.even(SHARDS, 1))
    stepper.resume(0)  # in a generation with the same members
    finish(stepper, model, 0)
    other = model_of(width=width)
    for shard in range(SHARDS):
        (loss_of(other, shard) / SHARDS).backward()
    expected = [p.detach() - 0.1 * p.grad for p in other.parameters()]
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


def shard_with(stepper, model, change):
    """Compute one shard, and change something after its backward pass."""
    work = stepper.next_work()
    stepper.begin_shard(work, seed=work.item.leaf)
    stepper.backward(loss_of(model, work.item.leaf), 1 / SHARDS, scale=1)
    change(model)
    stepper.end_shard()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("0.weight", lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1)),
        ("0.weight", lambda model: nn.utils.clip_grad_norm_(model.parameters(), math.inf)),
        ("0.weight", lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1)),
        ("2.bias", lambda model: setattr(model[2].bias, "grad", None)),
        ("2.bias", lambda model: setattr(model[2].bias, "grad", torch.ones(1))),
        ("2.bias", lambda model: setattr(model[2].bias.grad, "data", torch.ones(1))),
        ("2.bias", lambda model: model[2].bias.grad.zero_()),
        ("0.bias", lambda model: model[0].bias.grad.data.clamp_(-1, 1)),
        ("0.bias", lambda model: model[0].bias.grad.detach().view(2, 2).mul_(2)),
        ("0.weight", lambda model: model[0].weight.grad.t()[0].zero_()),
        ("0.weight", lambda model: torch._foreach_mul_([model[0].weight.grad], 2)),
        ("0.weight", lambda model: torch.neg(model[0].weight.detach(), out=model[0].weight.grad)),
        ("2", lambda model: model(batch(0)[0]).sum().backward()),
    ],
)
def test_a_changed_gradient_of_a_shard_is_refused(stepper, model, name, change):
    with pytest.raises(JobError, match=f"{name}.* was changed after .*session.on_gradients"):
        shard_with(stepper, model, change)


def test_a_refusal_that_user_code_catches_comes_again(stepper, model):
    def clip(model):
        with contextlib.suppress(Exception):
            model[0].weight.grad.view(-1)[0] = 1

    with pytest.raises(JobError, match=r"0.weight was changed after"):
        shard_with(stepper, model, clip)


@pytest.mark.parametrize(
    "clear",
    [
        lambda optimizer, _: optimizer.zero_grad(),
        lambda optimizer, _: optimizer.zero_grad(set_to_none=False),
        lambda _, model: model.zero_grad(),
        lambda _, model: [p.grad.data.zero_() for p in model.parameters()],
    ],
)
def test_clearing_all_gradients_after_backward_changes_nothing(stepper, model, replica, clear):
    while stepper.next_work():
        shard_with(stepper, model, lambda model: clear(replica.optimizers[0], model))
        assert all(parameter.grad is None for parameter in model.parameters())
    stepper.commit(0, VOTE, scale=1)
    other = model_of()
    for shard in range(SHARDS):
        (loss_of(other, shard) / SHARDS).backward()
    for parameter, plain in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), plain.detach() - 0.1 * plain.grad)


def test_a_shards_gradient_can_be_read_and_kept(stepper, model):
    kept = []
    scale = torch.ones(4, requires_grad=True)
    biases = []

    def read(model):
        gradients = [p.grad for p in model.parameters()]
        weight = model[0].weight.grad
        flat = torch.cat([each.view(-1) for each in gradients])
        torch.testing.assert_close(flat.norm(), nn.utils.get_total_norm(gradients))
        sums = torch.zeros(4, 3).add_(weight**2)
        assert sums.sum().sqrt().item() == pytest.approx(weight.norm().item())
        for copied in (
            copy.deepcopy(weight),
            pickle.loads(pickle.dumps(weight)),
            torch.tensor(weight.tolist()),
            torch.from_numpy(weight.cpu().numpy()),
        ):
            assert copied.mul_(2).equal(2 * weight)
        kept.append(weight)
        # Only a graph of autograd has this one.
        biases.append((model[0].bias.grad.clone(), (scale * model[0].bias.grad).sum()))

    while stepper.next_work():
        shard_with(stepper, model, read)
    other = model_of()
    for shard, gradient in enumerate(kept):
        other.zero_grad()
        (loss_of(other, shard) / SHARDS).backward()
        assert other[0].weight.grad.equal(gradient.clone())
    for gradient, scaled in biases:
        assert torch.autograd.grad(scaled, scale)[0].clone().equal(gradient)


def test_a_gradient_hook_has_the_mean_gradient_and_the_last_word(stepper, model):
    plain = model_of()
    start = [each.detach().clone() for each in model.parameters()]

    def change():
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
            mine.grad.fill_(0.5)
        model[2].bias.grad = None

    for shard in range(SHARDS):
        (loss_of(plain, shard) / SHARDS).backward()
    stepper.on_gradients = change
    finish(stepper, model, 0)
    *others, bias = zip(model.parameters(), start, strict=True)
    assert bias[0].equal(bias[1])
    for parameter, before in others:
        assert parameter.equal(before.add(torch.full_like(before, 0.5), alpha=-0.1))


@pytest.mark.parametrize("exchange", ["arena"])
def test_a_step_that_others_have_committed_is_completed_with_the_hook(stepper, model, replica):
    flat = replica.flat.clone()
    stepper.on_gradients = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    finish(stepper, model, 0)
    expected = replica.flat.clone()
    replica.flat.copy_(flat)  # as before the step, whose gradient is still in the root slot
    replica.restored(frozenset(replica.uninitialized))
    stepper.complete(0)
    assert torch.equal(replica.flat, expected)
    assert not torch.equal(replica.flat, flat)


class Fragile(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory (pretended)")


def test_a_backward_pass_that_fails_adds_nothing_and_can_be_tried_again(stepper, model):
    finish(stepper, model, 0)  # slots have an old gradient from here on
    plain = copy.deepcopy(model)
    while work := stepper.next_work():
        leaf = work.item.leaf
        stepper.begin_shard(work, seed=leaf)
        with pytest.raises(RuntimeError, match="pretended"):
            stepper.backward(Fragile.apply(loss_of(model, leaf)), 1 / SHARDS, scale=1)
        assert all(parameter.grad is None for parameter in model.parameters())
        if leaf == 1:
            stepper.buffers.begin()
            stepper.backward(loss_of(model, leaf), 1 / SHARDS, scale=1)
            with pytest.raises(JobError, match="called twice for one shard"):
                stepper.backward(loss_of(model, leaf), 1 / SHARDS, scale=1)
        stepper.end_shard()
    committed = stepper.commit(1, VOTE, scale=1)
    loss = loss_of(plain, 1)
    assert committed.outcome().loss == pytest.approx(loss.item())
    loss.backward()
    assert committed.outcome().norm == pytest.approx(
        float(nn.utils.get_total_norm([p.grad for p in plain.parameters()]))
    )


def test_a_shard_without_weight_adds_nothing_even_if_its_loss_is_not_a_number(stepper, model):
    while work := stepper.next_work():
        stepper.begin_shard(work, seed=work.item.leaf)
        loss = loss_of(model, work.item.leaf)
        first = work.item.leaf == 0
        stepper.log({"accuracy": math.nan if first else 1.0})
        stepper.backward(loss * math.nan if first else loss, 0 if first else 1, scale=1)
        assert first == (float(model[0].weight.grad.norm()) == 0)
        stepper.end_shard()
    committed = stepper.commit(0, VOTE, scale=1)
    plain = model_of()
    losses = [loss_of(plain, shard).item() for shard in range(1, SHARDS)]
    assert committed.outcome().loss == pytest.approx(sum(losses) / (SHARDS - 1))
    assert committed.outcome().logged == {"accuracy": 1.0}
    assert math.isfinite(committed.outcome().norm)
