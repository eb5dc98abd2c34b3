"""The replica holds everything that training changes, and nothing is trained outside it."""

import pytest
import torch
from torch import nn

from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.errors import JobError


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def replica_of(model, optimizer, **kept):
    trained = Trained(model=model, optimizers=(optimizer,), kept=kept)
    layout = replica_layout(trained)
    return Replica(trained, layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


def layout_of(model, optimizer):
    return replica_layout(Trained(model=model, optimizers=(optimizer,)))


def train(model, optimizer, replica=None, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if replica is not None:
            replica.capture_optimizers()
            for name, buffer in model.named_buffers():  # what a commit does
                replica.buffers[name].copy_(buffer)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.fixture
def three_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_fused_optimizer_gives_the_same_bits_each_time(three_threads, dtype):
    def trained():
        torch.manual_seed(0)
        model = nn.Linear(53, 37, dtype=dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        replica = replica_of(model, optimizer)
        for _ in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            replica.step_optimizers()
            replica.capture_optimizers()
        assert torch.get_num_threads() == 3
        return replica.flat.clone()

    first = trained()
    assert all(torch.equal(trained(), first) for _ in range(30))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_in_a_replica_gives_the_bits_of_training_without(name):
    plain, held = net(), net()
    plain_optimizer = OPTIMIZERS[name](plain.parameters())
    held_optimizer = OPTIMIZERS[name](held.parameters())
    train(plain, plain_optimizer)
    train(held, held_optimizer, replica_of(held, held_optimizer))
    for mine, theirs in zip(plain.state_dict().values(), held.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copy_of_the_bytes_trains_like_the_original(name):
    original, copy = net(), net()
    optimizer, copied_optimizer = (OPTIMIZERS[name](m.parameters()) for m in (original, copy))
    replica, copied = replica_of(original, optimizer), replica_of(copy, copied_optimizer)
    train(original, optimizer, replica)
    copied.flat.copy_(replica.flat)
    copied.restored(frozenset(replica.uninitialized))
    for key, buffer in copy.named_buffers():
        buffer.copy_(copied.buffers[key])
    train(original, optimizer, replica)
    train(copy, copied_optimizer, copied)
    assert torch.equal(replica.flat, copied.flat)
    assert replica.digest() == copied.digest()
    assert replica.weights_sha256() == copied.weights_sha256()


def test_state_of_a_parameter_without_gradient_is_uninitialized():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    replica = replica_of(model, optimizer)
    assert len(replica.uninitialized) == 3 * len(list(model.parameters()))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()
    replica.capture_optimizers()
    assert "optimizer.0.weight:exp_avg" not in replica.uninitialized
    assert "optimizer.2.weight:exp_avg" in replica.uninitialized


def test_names_that_begin_alike_keep_their_own_state():
    class Alike(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Module()
            self.a.register_parameter("b", nn.Parameter(torch.ones(2)))
            self.register_parameter("ab", nn.Parameter(torch.ones(3)))

    model = Alike()
    optimizer = torch.optim.Adam(model.parameters())
    replica = replica_of(model, optimizer)
    replica.restored(frozenset())
    assert set(optimizer.state[model.ab]) == {"step", "exp_avg", "exp_avg_sq"}
    assert optimizer.state[model.a.b]["exp_avg"].shape == (2,)


def test_an_average_of_the_model_is_part_of_its_replica():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    replica = replica_of(model, optimizer, average=average)
    before = replica.digest()
    with torch.no_grad():
        average.module[0].weight += 1
        average.module[1].running_mean = torch.full((3,), 5.0)  # memory of its own
        average.module[2].weight.data = torch.full((2, 3), 7.0)
    replica.capture_modules()
    assert replica.digest() != before
    held = {entry.name: entry for entry in replica.layout.entries}
    for name, value in (("1.running_mean", 5.0), ("2.weight", 7.0)):
        entry = held[f"kept.average.module.{name}"]
        assert (replica.flat[entry.offset : entry.end].view(torch.float32) == value).all()
    assert average.module[2].weight.data_ptr() != model[2].weight.data_ptr()


def test_state_that_an_optimizer_has_before_its_first_step_is_in_the_replica():
    model = net()
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)
    replica = replica_of(model, optimizer)
    assert not replica.uninitialized
    entry = next(e for e in replica.layout.entries if e.name == "optimizer.0.weight:sum")
    assert (replica.flat[entry.offset : entry.end].view(torch.float32) == 0.5).all()


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = net()
    with pytest.raises(JobError, match="LBFGS cannot be used"):
        layout_of(model, torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_over_foreign_parameters_is_refused():
    with pytest.raises(JobError, match="a parameter that is not the model's"):
        layout_of(net(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", object(), "optimizer.0.weight:count is a object, which can be neither saved nor"),
        (1, torch.ones(1), "optimizer.0.weight:1 is not named by a string without a colon"),
    ],
)
def test_an_optimizer_whose_state_cannot_be_saved_is_refused(key, value, message):
    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter][key] = value

    model = net()
    with pytest.raises(JobError, match=message):
        layout_of(model, Keeping(model.parameters(), lr=1))


def test_a_rehearsal_leaves_the_optimizer_and_all_that_it_holds_as_they_are():
    class Holding(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 1.0})
            self.inner = {"sgd": torch.optim.SGD(self.param_groups[0]["params"], momentum=0.5)}
            self.counts = [0]
            self.step_inner = self.inner["sgd"].step
            torch.optim.lr_scheduler.StepLR(self.inner["sgd"], 1)  # replaces its `step`

        def step(self, closure=None):
            self.counts[0] += 1
            self.param_groups[0].setdefault("seen", []).append(1)
            self.step_inner()

    model = net()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = Holding(model.parameters())
    names = {entry.name for entry in layout_of(model, optimizer).entries}
    assert "optimizer[inner[sgd]].0.weight:momentum_buffer" in names
    assert optimizer.counts == [0]
    assert "seen" not in optimizer.param_groups[0]
    assert not optimizer.inner["sgd"].state


def test_the_digest_notices_a_flipped_bit():
    model = net()
    replica = replica_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = replica.digest()
    replica.flat[3] ^= 1
    assert replica.digest() != before
