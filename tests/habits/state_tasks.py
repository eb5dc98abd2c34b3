"""Tasks that keep state where programs for plain PyTorch keep it."""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

_x = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(_x, _x[:, :3].argmax(1))


def train_on(session, model):
    for x, y in session.shards(DATA, epochs=2):
        session.backward(F.cross_entropy(model(x), y))


class History:
    """Holds a count where no state dict looks."""

    def __init__(self):
        self.seen = 0


class Anneal(nn.Module):
    """Has its count, and a tensor that grows, as extra state."""

    def __init__(self):
        super().__init__()
        self.history = History()
        self.trace = torch.zeros(0)

    def forward(self, x):
        return x * (1 + 0.1 * self.history.seen)

    def get_extra_state(self):
        return {"seen": self.history.seen, "trace": self.trace, "last": (self.history.seen, None)}

    def set_extra_state(self, state):
        self.history.seen = state["seen"]
        self.trace = state["trace"]
        assert state["last"] == (state["seen"], None)


class Scaled(nn.Module):
    """Adds an entry of its own to its state dict."""

    def __init__(self):
        super().__init__()
        self.history = History()

    def forward(self, x):
        return x / (1 + self.history.seen)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "seen"] = torch.tensor(self.history.seen)

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        if prefix + "seen" in state_dict:
            self.history.seen = int(state_dict[prefix + "seen"])


def annealed():
    return nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3), Anneal(), Scaled())


def extra_state(session):
    model, _ = session.attach(annealed, lambda p: torch.optim.SGD(p, lr=0.1))
    kept = session.register("kept", Anneal())

    def after():
        model[2].history.seen += 1
        model[2].trace = torch.arange(float(session.step))
        model[3].history.seen += session.step % 2
        kept.history.seen = 2 * session.step

    session.on_commit(after)
    train_on(session, model)


class Pickled(Anneal):
    def get_extra_state(self):
        return self.history


def extra_state_of_objects(session):
    model, _ = session.attach(
        lambda: nn.Sequential(nn.Linear(8, 3), Pickled()), lambda p: torch.optim.SGD(p, lr=0.1)
    )
    train_on(session, model)


def extra_state_in_forward(session):
    model, _ = session.attach(annealed, lambda p: torch.optim.SGD(p, lr=0.1))
    for x, y in session.shards(DATA):
        model[2].history.seen += 1
        session.backward(F.cross_entropy(model(x), y))


class Box:
    def __init__(self, **held):
        self.held = held


class Late(torch.optim.Optimizer):
    """Averages weights every third step, and holds the optimizer that it wraps; like many of its
    kind, it does not call its base class's constructor.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.inner_state = optimizer.state
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            group["counter"] += 1
            for p in group["params"] if group["counter"] % 3 == 0 else []:
                slow = self.state[p].setdefault("slow", p.clone())
                slow.lerp_(p, 0.5)
                p.copy_(slow)


class Counting(torch.optim.Optimizer):
    """Divides its rate by numbers in its state, of a parameter and of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        self.state["norms"] = [*self.state.get("norms", []), 1.0]
        self.state["mean"] = {"of": self.state.get("mean", {"of": torch.zeros(2)})["of"] + 1}
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=0, rate=1.0, is_odd=False, kind="plain", unused=None)
                state["step"] += 1
                state["is_odd"] = state["step"] % 2 == 1
                state["rate"] = 1 / state["step"]
                factor = state["rate"] / (1 + state["is_odd"]) / len(self.state["norms"])
                p.add_(p.grad, alpha=-group["lr"] * factor / float(self.state["mean"]["of"][0]))


class Parts(torch.optim.Optimizer):
    """Has one optimizer for matrices and others for vectors, in a list and in an object."""

    def __init__(self, model):
        matrices = [p for p in model.parameters() if p.ndim == 2]
        first, *vectors = [p for p in model.parameters() if p.ndim < 2]
        super().__init__([{"params": matrices}, {"params": [first, *vectors]}], {})
        self.parts = [torch.optim.Muon(matrices, lr=0.02), Late(torch.optim.Adam([first], lr=0.1))]
        self.box = Box(rest=Counting(vectors), again=self.parts)

    def step(self, closure=None):
        for part in [*self.box.held["again"], self.box.held["rest"]]:
            part.step()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


def nested_optimizers(session):
    model, _ = session.attach(net, Parts, schedule=lambda total_steps: lambda step: 1 / (1 + step))
    train_on(session, model)


def second_optimizer(session):
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    session.on_commit(other.zero_grad)
    train_on(session, model)


def average_not_registered(session):
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    average = AveragedModel(model)
    session.on_commit(lambda: average.update_parameters(model))
    train_on(session, model)


def list_of_optimizers(session):
    session.attach(net, lambda p: [torch.optim.SGD(p, lr=0.1)])


def lazy_part(session):
    session.attach(lambda: nn.Sequential(nn.LazyLinear(3)), lambda p: torch.optim.SGD(p, lr=0.1))


def parallel_part(session):
    session.attach(
        lambda: nn.Sequential(nn.DataParallel(net())), lambda p: torch.optim.SGD(p, lr=0.1)
    )


def aliases(session):
    """Holds parts of `session.state`, and a list of the model, under names of its own."""
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    losses = session.state.setdefault("losses", [])
    best = session.state.setdefault("best", [{"lowest": 9.0}])[0]
    scales = model.scales = [1.0]
    mark = Path(session.job.params["mark"])

    def after():
        losses.append(session.loss)
        best["lowest"] = min(best["lowest"], session.loss)
        scales.append(scales[-1] / 2)
        assert session.state == {"losses": losses, "best": [best]}
        optimizer.param_groups[0]["lr"] = best["lowest"] / (len(losses) + sum(model.scales))

    session.on_commit(after)
    for shard in session.shards(DATA, epochs=2):
        if shard.step == 8:
            with suppress(FileNotFoundError):  # another worker was first, or it is not there
                mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Model(nn.Module):
    """Has tensors, attributes and extra state in modules that may be compiled."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))
        self.dropout = nn.Dropout(0.5)
        self.anneal = Anneal()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.dropout(self.anneal(self.body(x))))


def compiled_model():
    model = Model()
    model.body = torch.compile(model.body, backend="eager")
    model.dropout = torch.compile(model.dropout, backend="eager")
    return torch.compile(model, backend="eager")


def of_fixed_shapes(graph, inputs):
    """A compiler of what has no dynamic shapes."""
    sizes = [size for each in inputs for size in (each, *getattr(each, "shape", ()))]
    assert not any(isinstance(size, torch.SymInt) for size in sizes)
    return graph.forward


def compiled_for_shapes(session):
    """Meets shards of different sizes."""
    model, _ = session.attach(Model, lambda p: torch.optim.SGD(p, lr=0.01))
    train_on(session, torch.compile(model, backend=of_fixed_shapes))


def perhaps_compiled(session):
    is_compiled = Path(session.job.params["mark"]).exists()
    model, _ = session.attach(
        compiled_model if is_compiled else Model, lambda p: torch.optim.Adam(p, lr=0.01)
    )
    average = AveragedModel(model)
    session.register("average", average)

    def after():
        model.anneal.history.seen = session.step % 3
        model.dropout.p = 0.5 / session.step
        model.body.train(session.step < 4)
        model.head.bias.requires_grad_(session.step % 2 == 0)
        average.update_parameters(model)

    session.on_commit(after)
    train_on(session, model)


class Counted(torch.optim.SGD):
    """Counts its steps in an object."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.history = History()

    def step(self, closure=None):
        self.history.seen += 1
        super().step()


def object_of_optimizer(session):
    model, _ = session.attach(net, Counted)
    train_on(session, model)


def object_of_module(session):
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    model.history = History()

    def after():
        model.history.seen += 1

    session.on_commit(after)
    train_on(session, model)


def counts_in_a_closure(session):
    """Count steps in a variable, and in `session.state`."""
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    seen = []

    def count():
        seen.append(session.step)
        session.state["seen"] = session.state.get("seen", 0) + 1
        if session.step == 12:
            print("counted", len(seen), session.state["seen"], flush=True)

    session.on_commit(count)
    train_on(session, model)
