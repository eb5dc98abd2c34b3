"""Tasks that change gradients, as plain PyTorch programs do."""

import os
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
Y = X.argmax(1) % 3
DATA = TensorDataset(X, Y)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train_on(session, model, **keys):
    for shard in session.shards(DATA, **keys):
        killed_once(session, shard.step)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def killed_once(session, step):
    """Have one worker die once in a step, if `params.mark` is there."""
    if step == 3 and "mark" in session.job.params:
        with suppress(FileNotFoundError):
            Path(session.job.params["mark"]).unlink()
            os.abort()


def clips_after_backward(session):
    model, _ = session.attach(network, momentum)
    for x, y in session.shards(DATA):
        session.backward(F.cross_entropy(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clips_in_a_hook(session):
    model, _ = session.attach(network, momentum)
    session.on_gradients(lambda: clip(model))
    train_on(session, model)


def clips_in_hooks_of_parameters(session):
    model, _ = session.attach(network, momentum)
    clip_in_hooks(model)
    train_on(session, model)


def clip_in_hooks(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        parameter.register_post_accumulate_grad_hook(shift)


def shift(parameter):
    parameter.grad.add_(0.02)


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    *_, bias = model.parameters()
    bias.grad = None


def doubles(session):
    model, _ = session.attach(network, momentum)
    session.on_gradients(lambda: [p.grad.mul_(2) for p in model.parameters()])
    train_on(session, model)


def adds_noise(session):
    model, _ = session.attach(network, momentum)

    def noise():
        clip(model)
        for each in (model[0].weight.grad, model[0].bias.grad):
            each.add_(0.01 * torch.randn_like(each))

    session.on_gradients(noise)
    train_on(session, model, epochs=2)


def draws_alone(session):
    model, _ = session.attach(network, momentum)
    session.on_gradients(lambda: model[0].bias.grad.add_(int.from_bytes(os.urandom(4)) / 2**32))
    train_on(session, model, epochs=100)


def raises_in_a_hook(session):
    model, _ = session.attach(network, momentum)

    def fail():
        if session.step == 2:
            raise ValueError("odd gradients")

    session.on_gradients(fail)
    train_on(session, model)


def steps_in_a_hook(session):
    model, optimizer = session.attach(network, momentum)
    session.on_gradients(optimizer.step)
    train_on(session, model)


def clips_two_models(session):
    first, _ = session.attach(lambda: nn.Linear(6, 6), momentum, name="first")
    second, _ = session.attach(lambda: nn.Linear(6, 3), momentum, name="second")
    both = nn.ModuleList([first, second])
    session.on_gradients(lambda: nn.utils.clip_grad_norm_(both.parameters(), 0.1))
    for x, y in session.shards(DATA):
        session.backward(F.cross_entropy(second(first(x)), y))


class Turned(nn.Module):
    """Rotary frequencies as a complex buffer, and complex weights if `trains`."""

    def __init__(self, *, persistent=False, trains=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        turns = torch.polar(torch.ones(3), torch.arange(3.0))
        if trains:
            self.turns = nn.Parameter(turns)
        else:
            self.register_buffer("turns", turns, persistent=persistent)

    def forward(self, x):
        turned = torch.view_as_complex(self.first(x).view(-1, 3, 2)) * self.turns
        return self.last(torch.view_as_real(turned).reshape(-1, 6))


class Halves(nn.Module):
    """Layers in float32, bfloat16 and float16, an empty parameter, and buffers of all kinds."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6, dtype=torch.bfloat16)
        self.third = nn.Linear(6, 3, dtype=torch.float16)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True, True, True, True]))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x):
        self.count += 1
        x = self.second((self.first(x) * self.mask).bfloat16())
        return self.third(x.half()).float() + self.empty.sum()


class Embedded(nn.Module):
    """A sparse embedding whose rows repeat in a batch."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(10, 4, sparse=True)
        self.tied = nn.Linear(4, 4)
        self.also = self.tied
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        rows = self.rows((x.abs() * 4).long().clamp(max=9))
        return self.last(self.also(torch.tanh(self.tied(rows.mean(1)))))


class Parts(nn.Module):
    """Two parameters that are apart in one tensor."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(6, 6)
        self.left = nn.Parameter(whole[:, :3])
        self.right = nn.Parameter(whole[:, 3:])

    def forward(self, x):
        return x @ self.left + x @ self.right


KINDS = {
    "complex buffer": (Turned, torch.optim.AdamW),
    "saved complex buffer": (lambda: Turned(persistent=True), torch.optim.AdamW),
    "complex weights": (lambda: Turned(trains=True), torch.optim.Adam),
    "float64": (lambda: network().double(), torch.optim.AdamW),
    "halves": (Halves, torch.optim.SGD),
    "parts of a tensor": (Parts, torch.optim.AdamW),
    "sparse gradient": (Embedded, torch.optim.SGD),
    "SparseAdam": (Embedded, torch.optim.SparseAdam),
    "LBFGS": (network, torch.optim.LBFGS),
}


def of_a_kind(session):
    build, optimizer = KINDS[session.job.params["kind"]]
    model, _ = session.attach(build, lambda p: optimizer(p, lr=0.02))
    for shard in session.shards(DATA):
        killed_once(session, shard.step)
        session.backward(loss_of(model, shard.x, shard.y))


def loss_of(model, x, y):
    is_double = next(model.parameters()).dtype is torch.float64
    return F.cross_entropy(model(x.double() if is_double else x), y)


class Scaled(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, output, y):
        return F.cross_entropy(output * self.scale, y)


def has_a_loss_with_weights(session):
    loss = Scaled()
    model, _ = session.attach(network, momentum)
    for x, y in session.shards(DATA):
        session.backward(loss(model(x), y))


def trains_a_plain_tensor(session):
    scale = torch.ones(5, requires_grad=True)
    model, _ = session.attach(network, momentum)

    def step():
        with torch.no_grad():
            scale.sub_(0.1 * scale.grad)
        scale.grad = None

    session.on_commit(step)
    for x, y in session.shards(DATA):
        session.backward(F.cross_entropy(model(x), y) * scale.mean())


def trains_a_registered_module(session):
    model, _ = session.attach(network, momentum)
    loss = session.register("loss", Scaled())
    second = torch.optim.SGD(loss.parameters(), lr=0.1)
    session.on_commit(second.step)
    for x, y in session.shards(DATA):
        session.backward(loss(model(x), y))


def steps_a_second_optimizer(session):
    model, _ = session.attach(network, lambda model: momentum(model[0].parameters()))
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    session.on_commit(second.step)
    train_on(session, model)


def trains_beside_the_run(session):
    """Trains a module of its own in a commit hook, alike on every worker."""
    model, _ = session.attach(network, momentum)
    beside = nn.Linear(6, 3)
    second = momentum(beside.parameters())
    if session.job.params["saved"]:
        session.register("beside", beside)
        session.register("second", second)

    def step():
        second.zero_grad()
        F.cross_entropy(beside(X), Y).backward()
        second.step()
        with torch.no_grad():
            model[2].bias.copy_(beside.bias)

    session.on_commit(step)
    train_on(session, model, epochs=2)


def depends_on_much(session):
    """A loss with inputs that require a gradient, an average, a checkpoint, and a function."""
    model, _ = session.attach(network, momentum)
    average = session.register("average", AveragedModel(model))
    session.on_commit(lambda: average.update_parameters(model))
    for x, y in session.shards(DATA, epochs=7):
        x.requires_grad_()
        delta = torch.zeros_like(x, requires_grad=True)
        output = model[2](checkpoint(model[:2], x + delta, use_reentrant=False))
        loss = F.cross_entropy(output, y) + 0.1 * F.mse_loss(output, average(x))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        session.backward(loss + slope.square().mean())


def catches_errors(session):
    """Skips shards whose forward or backward pass raises."""
    model, _ = session.attach(network, momentum)
    how = session.job.params["how"]
    for x, y in session.shards(DATA, epochs=2):
        fails = bool((x == X[13]).all(1).any())
        if fails and how == "before":
            continue
        try:
            output = model(x)
            if fails and how == "forward":
                raise RuntimeError("out of memory (pretended)")
            session.backward(F.cross_entropy(Fragile.apply(output) if fails else output, y))
        except RuntimeError as error:
            if "pretended" not in str(error):
                raise


class Fragile(torch.autograd.Function):
    """Raises in its backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory (pretended)")


def labels(session):
    """A few samples have a label, so that some shards have none, and a loss of 0/0."""
    model, _ = session.attach(network, momentum)
    few = torch.where(torch.arange(96) % 12 == 0, Y, -100)
    for x, y in session.shards(TensorDataset(X, few)):
        loss = F.cross_entropy(model(x), y, ignore_index=-100)
        session.log(own=loss.item())
        session.backward(loss, weight=(y != -100).sum())


def gives_a_weight(session):
    model, _ = session.attach(network, momentum)
    for x, y in session.shards(DATA):
        session.backward(F.cross_entropy(model(x), y), weight=session.job.params["weight"])


class Shared(nn.Module):
    """Two parameters in the same memory."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight.data = self.one.weight.data.t()


def shares_memory(session):
    session.attach(Shared, momentum)
    list(session.shards(DATA))
