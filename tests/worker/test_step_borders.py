"""One worker's steps at their borders: norms, scales, parts that are missing, and when the host
decides.
"""

import math
import os

import pytest
import torch
from one_worker import (
    SHARDS,
    VOTE,
    compute,
    finish,
    loss_of,
    member_of,
    model_of,
    replica_of,
    stepper_of,
)
from several_workers import partly_used_model, sgd
from torch import nn

from holdfast.arena.device.mapped import MappedLayout, MappedMemory
from holdfast.arena.memory import Phase, Word
from holdfast.core.step.plan import Plan
from holdfast.errors import NonFiniteError
from holdfast.worker.step.gradient_norm import MAX_FINITE_NORM

EXCHANGES = pytest.mark.parametrize("exchange", ["arena", "alone"])


def fused(parameters):
    return torch.optim.SGD(parameters, lr=0.1, fused=True)


OPTIMIZERS = pytest.mark.parametrize("optimizer_of", [sgd, fused])


def trained(steps=1, optimizer_of=sgd, model=None, **keys):
    """The weights after some steps, and the norm of the last one."""
    model = model or partly_used_model()
    replica = replica_of(model, optimizer_of(model.parameters()))
    with stepper_of(replica, **keys) as stepper:
        for step in range(steps):
            outcome = finish(stepper, model, step).outcome()
    return replica.flat, outcome


@EXCHANGES
@OPTIMIZERS
@pytest.mark.parametrize("part", [0.5, 0.999])
def test_a_gradient_is_clipped_as_pytorch_clips_it(exchange, optimizer_of, part):
    _, outcome = trained(exchange=exchange, optimizer_of=optimizer_of)
    most = part * outcome.norm
    model, plain = partly_used_model(), partly_used_model()
    trained(exchange=exchange, optimizer_of=optimizer_of, model=model, clip_norm=most)
    for shard in range(SHARDS):
        (loss_of(plain, shard) / SHARDS).backward()
    assert float(nn.utils.clip_grad_norm_(plain.parameters(), most)) == pytest.approx(outcome.norm)
    optimizer_of(plain.parameters()).step()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@EXCHANGES
@OPTIMIZERS
def test_a_gradient_with_just_the_clipped_norm_keeps_its_bits(exchange, optimizer_of):
    expected, outcome = trained(exchange=exchange, optimizer_of=optimizer_of)
    clipped = {"exchange": exchange, "optimizer_of": optimizer_of, "clip_norm": outcome.norm}
    assert torch.equal(trained(**clipped)[0], expected)
    clipped["clip_norm"] *= 0.99
    assert not torch.equal(trained(**clipped)[0], expected)


class One(nn.Module):
    """A model with one weight, whose gradient is what a test wants."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


@EXCHANGES
@OPTIMIZERS
@pytest.mark.parametrize(
    ("gradient", "skipped"),
    [
        (MAX_FINITE_NORM, True),
        (MAX_FINITE_NORM * (1 - 2**-24), False),
        (math.nan, True),
    ],
)
def test_the_largest_norm_that_is_applied(exchange, optimizer_of, gradient, skipped):
    model = One()
    replica = replica_of(model, optimizer_of(model.parameters()))
    keys = {"non_finite": "skip", "shards": 1}
    with stepper_of(replica, exchange=exchange, **keys) as stepper:
        stepper.begin_shard(stepper.next_work(), seed=0)
        stepper.backward((model.weight * gradient).sum(), 1, scale=1)
        stepper.end_shard()
        outcome = stepper.commit(0, VOTE, scale=1).outcome()
    assert outcome.skipped == skipped
    assert (model.weight == 0) == skipped


@EXCHANGES
@OPTIMIZERS
def test_a_scale_of_losses_changes_no_bit(exchange, optimizer_of):
    found = []
    for scale in (1, 4):
        model = partly_used_model()
        replica = replica_of(model, optimizer_of(model.parameters()))
        with stepper_of(replica, exchange=exchange, precision="fp16") as stepper:
            for step in range(3):
                outcome = finish(stepper, model, step, scale=scale).outcome()
        found.append((replica.flat, outcome))
    (flat, outcome), (other, of_other) = found
    assert torch.equal(flat, other)
    assert outcome == of_other


@EXCHANGES
@OPTIMIZERS
@pytest.mark.parametrize("scale", [1, 2])
def test_only_a_scaled_step_that_is_not_finite_is_always_skipped(exchange, optimizer_of, scale):
    model = partly_used_model()
    replica = replica_of(model, optimizer_of(model.parameters()))
    with stepper_of(replica, exchange=exchange, precision="fp16") as stepper:
        finish(stepper, model, 0)
        before = replica.flat.clone()
        if scale == 1:
            with pytest.raises(NonFiniteError, match=r"of 0\.weight, .* in step 2 is not finite"):
                finish(stepper, model, 1, math.inf, scale).outcome()
        else:
            assert finish(stepper, model, 1, math.inf, scale).outcome().skipped
        assert torch.equal(replica.flat, before)
        if scale == 2:
            assert not finish(stepper, model, 2, 1, scale).outcome().skipped


@EXCHANGES
def test_an_abandoned_step_leaves_no_gradient_and_begins_again(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with stepper_of(replica, exchange=exchange) as stepper:
        compute(stepper, model, stepper.next_work())
        stepper.begin_shard(stepper.next_work(), seed=0)
        stepper.backward(loss_of(model, 1), 1 / SHARDS, scale=1)
        stepper.abandon()
        assert all(parameter.grad is None for parameter in model.parameters())
        assert stepper.next_work().item.leaf == 0
        finish(stepper, model, 0)
    assert torch.equal(replica.flat, trained(exchange=exchange)[0])


@EXCHANGES
def test_a_parameter_that_no_shard_uses_has_no_gradient_and_a_used_one_none_after_the_step(
    exchange,
):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with stepper_of(replica, exchange=exchange, clip_norm=0.1) as stepper:
        names = set()
        stepper.on_gradients = lambda: names.update(
            name for name, each in model.named_parameters() if each.grad is not None
        )
        finish(stepper, model, 0)
    assert names == {name for name, _ in model.named_parameters()} - {"0.unused"}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[0].unused.equal(torch.ones(3))


@EXCHANGES
def test_a_gradient_that_a_hook_keeps_does_not_change(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    kept, copies = [], []

    def keep():
        kept.append(model[0].weight.grad)
        copies.append(model[0].weight.grad.clone())

    with stepper_of(replica, exchange=exchange) as stepper:
        stepper.on_gradients = keep
        for step in range(3):
            finish(stepper, model, step)
    assert all(map(torch.equal, kept, copies))


class Writing(torch.optim.SGD):
    """An optimizer that uses the memory of gradients for itself."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.fill_(7)


@EXCHANGES
def test_what_an_optimizer_writes_to_gradients_is_not_in_the_next_step(exchange):
    plain, expected = [], []
    for optimizer_of, flats in ((torch.optim.SGD, expected), (Writing, plain)):
        model = partly_used_model()
        replica = replica_of(model, optimizer_of(model.parameters(), lr=0.1))
        with stepper_of(replica, exchange=exchange) as member:
            for step in range(3):
                finish(member, model, step)
                flats.append(replica.flat.clone())
    assert all(map(torch.equal, plain, expected))


@EXCHANGES
def test_a_step_enters_its_phases_in_order(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with member_of(replica, exchange=exchange) as member:
        while work := member.stepper.next_work():
            compute(member.stepper, model, work)
        phases = []
        member.status.on_change = lambda phase, _: phases.append(phase)
        member.stepper.commit(0, VOTE, scale=1)
        assert phases == [Phase.REDUCE, Phase.OPTIMIZER]
        assert member.status[Word.REDUCED_STEP] == member.status[Word.COMMITTED] == 1


@EXCHANGES
def test_a_replica_is_not_whole_while_it_is_updated(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with member_of(replica, exchange=exchange) as member:
        intact = member.sections.intact
        intact.end_change(0, 0)
        seen = []
        member.stepper.on_gradients = lambda: seen.append(
            (
                intact.is_intact(0, 0),
                member.status[Word.REDUCED_STEP],
                member.status[Word.COMMITTED],
            )
        )
        while work := member.stepper.next_work():
            compute(member.stepper, model, work)
        assert intact.is_intact(0, 0)
        member.stepper.commit(0, VOTE, scale=1)
        assert seen == [(False, 1, 0)]


@EXCHANGES
def test_a_new_stepper_asks_for_nothing_special(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with stepper_of(replica, exchange=exchange) as stepper:
        assert not stepper.needs_every_worker
        assert not stepper.sends_whole
        assert stepper.on_gradients is None
        assert [item.leaf for item in stepper.work_items] == list(range(SHARDS))
        finish(stepper, model, 0)
        assert stepper.sends_whole == (exchange == "alone"), "no gradient is compressed on devices"


@EXCHANGES
def test_means_of_a_step_are_published_and_logged(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with member_of(replica, exchange=exchange) as member:
        stepper, losses = member.stepper, []
        while work := stepper.next_work():
            stepper.begin_shard(work, seed=0)
            loss = loss_of(model, work.item.leaf)
            losses.append(loss.item())
            stepper.log({"leaf": work.item.leaf})
            stepper.backward(loss, 1 / SHARDS, scale=1)
            stepper.end_shard()
        committed = stepper.commit(0, VOTE, scale=1)
        outcome = committed.outcome()
        assert (committed.step, committed.times) == (0, (VOTE.times,))
        assert outcome.logged == {"leaf": 1.5}
        assert outcome.loss == member.status.loss == pytest.approx(sum(losses) / SHARDS)


def decides_on_device(model, optimizer_of=fused, *, tolerates=False, hook=None, **keys):
    """True if the host does not know what a step comes to when it has committed it."""
    replica = replica_of(model, optimizer_of(model.parameters()))
    with member_of(replica, exchange="alone", **keys) as member:
        member.replicas.begin_generation(tolerates=tolerates)
        member.stepper.on_gradients = hook
        committed = finish(member.stepper, model, 0)
        assert math.isfinite(committed.outcome().loss)
        assert not committed.outcome().skipped
    if committed.pending is not None:
        assert (committed.pending.step, committed.pending.names) == (0, ())
        assert committed.pending.stops == (keys.get("non_finite") != "skip")
    return committed.pending is not None


class Wide(nn.Module):
    """A model in another dtype than its samples, except for one weight."""

    def __init__(self, dtype):
        super().__init__()
        self.inner = partly_used_model().to(dtype)
        self.dtype = dtype
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.inner(x.to(self.dtype)).float() * self.scale


def test_a_device_decides_alone_where_nothing_needs_the_host():
    assert decides_on_device(model_of())
    assert decides_on_device(model_of(), non_finite="skip")
    assert decides_on_device(partly_used_model(), clip_norm=0.1)
    assert decides_on_device(Wide(torch.float64))
    assert not decides_on_device(Wide(torch.float64), clip_norm=0.1)
    assert not decides_on_device(model_of(), sgd)
    assert not decides_on_device(model_of(), hook=lambda: None)
    assert not decides_on_device(model_of(), tolerates=True)
    assert not decides_on_device(model_of(), precision="fp16")


def test_a_step_that_a_device_decides_on_leaves_what_it_comes_to():
    model = model_of()
    replica = replica_of(model, fused(model.parameters()))
    size = replica.flat.numel()
    layout = MappedLayout(replica_bytes=size, share_bytes=0, slot_bytes=64, num_slots=0)
    mapped, replacement = (MappedMemory(torch.device("cpu"), layout) for _ in range(2))
    replacement.open(0, os.dup(mapped.fd))
    with member_of(replica, exchange="alone", mapped=mapped) as member:
        outcome = finish(member.stepper, model, 0).outcome()
        member.sections.intact.end_change(0, 1)
        left = replacement.outcome_left_by(0, mapped.changes)
        member.stepper.on_gradients = lambda: None  # from here on the host decides
        finish(member.stepper, model, 1)
        member.sections.intact.end_change(0, 2)
        later = replacement.outcome_left_by(0, mapped.changes)
    assert outcome.loss in left
    assert outcome.norm in left
    assert not any(later)
    for each in (mapped, replacement):
        os.close(each.fd)


@EXCHANGES
@OPTIMIZERS
def test_buffers_of_a_skipped_step_stay(exchange, optimizer_of):
    model = model_of()
    replica = replica_of(model, optimizer_of(model.parameters()))
    keys = {"exchange": exchange, "non_finite": "skip"}
    with stepper_of(replica, **keys) as stepper:
        finish(stepper, model, 0)
        start, end = replica.buffer_range
        before = replica.flat[start:end].clone()
        assert finish(stepper, model, 1, math.nan).outcome().skipped
        assert torch.equal(replica.flat[start:end], before)
        finish(stepper, model, 2)
        assert not torch.equal(replica.flat[start:end], before)


@EXCHANGES
def test_the_same_members_keep_what_is_computed(exchange):
    model = partly_used_model()
    replica = replica_of(model, sgd(model.parameters()))
    with stepper_of(replica, exchange=exchange) as stepper:
        compute(stepper, model, stepper.next_work())
        stepper.assign(0, Plan.even(SHARDS, 1))
        stepper.resume(0)
        assert stepper.next_work().item.leaf == 1
        finish(stepper, model, 0)
    assert torch.equal(replica.flat, trained(exchange=exchange)[0])
