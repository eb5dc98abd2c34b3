"""Tasks that keep state where programs for plain PyTorch keep it."""

import torch
import torch.nn.functional as F
from torch import nn

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
