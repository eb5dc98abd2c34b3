"""Steps that stay on a device: nothing waits for it, and a bad step changes nothing there."""

import math

import pytest
import torch
from one_worker import SHARDS, finish, loss_of, model_of, replica_of, stepper_of

from holdfast.errors import NonFiniteError
from holdfast.worker.step import device
from holdfast.worker.step.gradient_norm import norm_of_norms
from waits import NoWait

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}


class LateReadback:
    """A readback whose numbers come when they are waited for."""

    def __init__(self):
        self.waits = 0

    def __call__(self, values):
        snapshot = values.clone()

        def wait():
            self.waits += 1
            return snapshot.tolist()

        return wait


@pytest.fixture
def keys():
    return {}


@pytest.fixture
def model():
    return model_of()


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request):
    return request.param


@pytest.fixture
def replica(model, optimizer):
    return replica_of(model, OPTIMIZERS[optimizer](model.parameters()))


@pytest.fixture
def readback(monkeypatch):
    # As on a GPU: a CPU's norm is made of numbers on the host, and a copy is there at once.
    late = LateReadback()
    monkeypatch.setattr(device, "begin_readback", late)
    monkeypatch.setattr(device, "norm_on", lambda *_: norm_of_norms)
    return late


@pytest.fixture
def stepper(replica, readback, keys):
    with stepper_of(replica, exchange="alone", **keys) as found:
        yield found


@pytest.mark.parametrize("keys", [{}, {"clip_norm": 0.1}, {"precision": "bf16"}], ids=str)
def test_the_host_waits_for_nothing_in_a_steady_step(stepper, readback, model):
    finish(stepper, model, 0)  # the state of the optimizer begins here
    with NoWait():
        committed = [finish(stepper, model, step) for step in (1, 2)]
    assert readback.waits <= 1  # in the first step
    assert all(each.pending for each in committed)
    assert all(math.isfinite(each.outcome().loss) for each in committed)


def test_a_wait_in_a_step_is_noticed(stepper, model):
    finish(stepper, model, 0)
    stepper.begin_shard(stepper.next_work(), seed=0)
    with NoWait(), pytest.raises(AssertionError, match="_local_scalar_dense waits"):
        loss_of(model, 0).item()


@pytest.mark.parametrize("keys", [{"clip_norm": 0.1}, {"non_finite": "skip"}], ids=str)
def test_a_bad_step_changes_nothing_and_is_known_later(stepper, model, replica, keys):
    finish(stepper, model, 0)
    before = replica.flat.clone()
    committed = finish(stepper, model, 1, factor=math.inf)
    assert committed.pending
    assert torch.equal(replica.flat, before)
    if "non_finite" in keys:
        assert committed.outcome().skipped
    else:
        with pytest.raises(NonFiniteError, match=r"gradient of 0.weight, .* in step 2 is not"):
            committed.outcome()
    finish(stepper, model, 1)
    after = replica.flat.clone()
    replica.flat.copy_(before)
    stepper.restart()
    finish(stepper, model, 1)
    assert torch.equal(replica.flat, after)


@pytest.mark.parametrize("optimizer", ["sgd"])
@pytest.mark.parametrize("keys", [{"non_finite": "skip"}])
def test_the_first_step_of_a_momentum_is_decided_on_the_host(stepper, model, replica):
    before = replica.flat.clone()
    committed = finish(stepper, model, 0, factor=math.nan)
    assert committed.pending is None
    assert committed.outcome().skipped
    assert torch.equal(replica.flat, before)


@pytest.mark.parametrize("optimizer", ["adamw"])
@pytest.mark.parametrize("factor", [1, math.nan])
@pytest.mark.parametrize("keys", [{"non_finite": "skip"}])
def test_a_hook_on_gradients_sees_no_bad_ones(stepper, model, factor):
    finish(stepper, model, 0)
    seen = []
    stepper.on_gradients = lambda: seen.append(float(model[0].weight.grad.norm()))
    assert finish(stepper, model, 1, factor).pending is None
    assert len(seen) == (factor == 1)


def test_one_shard_gives_the_optimizer_what_autograd_has_made(model, replica):
    with stepper_of(replica, exchange="alone", shards=SHARDS) as stepper:
        for number in range(1, SHARDS):
            stepper._sums.skip(number)  # shards without samples
        work = stepper.next_work()
        stepper.begin_shard(work, seed=0)
        stepper.backward(loss_of(model, 0), 1, scale=1)
        made = [each.held.data_ptr() for each in (p.grad for p in model.parameters())]
        seen = []
        stepper.on_gradients = lambda: seen.extend(p.grad.data_ptr() for p in model.parameters())
        stepper.end_shard()
        finish(stepper, model, 0)
    assert seen == made


class Shared(torch.nn.Module):
    """Two parameters whose gradients autograd makes in the same memory."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Parameter(torch.randn(1, 3))
        self.b = torch.nn.Parameter(torch.randn(1, 3))

    def forward(self, x):
        return x @ (self.a.t() + self.b.t())


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_gradients_in_one_memory_are_those_of_the_arena(clip_norm):
    found = []
    for exchange in ("alone", "arena"):
        model = Shared()
        replica = replica_of(model, OPTIMIZERS["adamw"](model.parameters()))
        with stepper_of(replica, exchange=exchange, clip_norm=clip_norm) as stepper:
            for step in range(3):
                finish(stepper, model, step)
        found.append(replica.flat)
    assert torch.equal(*found)


@pytest.mark.parametrize("optimizer", ["adamw"])
@pytest.mark.parametrize("keys", [{"non_finite": "skip"}])
def test_a_hook_of_an_optimizer_is_not_called_in_a_bad_step(stepper, model, replica):
    calls = []
    replica.optimizers[0].register_step_post_hook(lambda *_: calls.append(1))
    finish(stepper, model, 0)
    finish(stepper, model, 1, factor=math.inf)
    assert len(calls) == 1


@pytest.mark.parametrize("optimizer", ["sgd"])
@pytest.mark.parametrize("keys", [{"non_finite": "skip"}])
def test_a_momentum_that_user_code_clears_is_made_anew(stepper, model, replica):
    finish(stepper, model, 0)
    replica.optimizers[0].state.clear()
    assert finish(stepper, model, 1, factor=math.nan).pending is None
    assert not replica.optimizers[0].state
