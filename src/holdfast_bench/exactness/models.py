"""Networks of the exactness fuzzer: a body for each `Model`, with odd sizes, and the `Part`s that
have been wrong somewhere before; for workers only.

Shapes: B samples, L rows, F features, H = the recipe's width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from holdfast_bench.exactness.case import Model, Recipe
from holdfast_bench.exactness.datasets import CLASSES

DECAY: Final = 0.9
SPREAD: Final = 10
"""Tokens per unit of a feature, for embeddings."""


class Network(nn.Module):
    """A recipe's network: `network(x_BLF, lengths_B)` gives logits BC.

    Args:
        recipe: What it is made of.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        hidden = recipe.width
        self.body = _BODIES[recipe.model](recipe)
        layers: list[nn.Module] = []
        for _ in range(recipe.depth - 1):
            layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(recipe.dropout)]
        self.middle = nn.Sequential(nn.Dropout(recipe.dropout), *layers)
        self.parts = nn.ModuleList(_PARTS[part](hidden) for part in recipe.parts)
        self.head = nn.Linear(hidden, CLASSES)
        self.scales = [1.0]
        self.shift = torch.zeros(())  # changed if the recipe has `attributes`

    def pipeline_parts(self) -> list[nn.Module]:
        """The layers, for a pipeline."""
        return [self.body, *self.middle, *self.parts, self.head]

    def forward(self, x_BLF: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Logits BC."""
        hidden_BH = self.middle(self.body(x_BLF, lengths_B))  # noqa: N806
        for part in self.parts:
            hidden_BH = part(hidden_BH)  # noqa: N806
        found: torch.Tensor = self.head(hidden_BH)
        return found


def _mean(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The mean over the rows that count; the others are zero."""
    return x.sum(1) / lengths.to(x.dtype)[:, None]


class _Flat(nn.Module):
    """Layers over the mean row of a sample."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(_mean(x, lengths))
        return found


class _Image(nn.Module):
    """Layers over a sample as an image of one channel."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, _lengths: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x[:, None])
        return found.mean((2, 3))


class _BatchNorm(nn.BatchNorm2d):
    """Passes on a batch of one value per channel, of which the statistics can make nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.numel() == x.shape[1]:
            return x
        return super().forward(x)


class _Recurrent(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        between = recipe.dropout if recipe.depth > 1 else 0.0
        self.lstm = nn.LSTM(
            recipe.features, recipe.width, recipe.depth, dropout=between, batch_first=True
        )

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lstm(x)[0]
        return found[torch.arange(len(x)), lengths - 1]


class _Attention(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        size = 2 * (recipe.width // 2 + 1)
        inner = 3 * recipe.width + 1
        self.into = nn.Linear(recipe.features, size)
        self.layer = nn.TransformerEncoderLayer(size, 2, inner, recipe.dropout, batch_first=True)
        self.out = nn.Linear(size, recipe.width)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(x.shape[1])[None] >= lengths[:, None]
        mixed: torch.Tensor = self.layer(self.into(x), src_key_padding_mask=padding)
        found: torch.Tensor = self.out(_mean(mixed.masked_fill(padding[..., None], 0), lengths))
        return found


class _Embedding(nn.Module):
    """Features as tokens; the embedding is the output layer's weight too."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        tokens = 4 * recipe.width + 1
        self.embedding = nn.Embedding(tokens, recipe.width)
        self.scores = nn.Linear(recipe.width, tokens, bias=False)
        self.scores.weight = self.embedding.weight
        self.out = nn.Linear(tokens, recipe.width)

    def forward(self, x: torch.Tensor, _lengths: torch.Tensor) -> torch.Tensor:
        tokens = (x.abs() * SPREAD).long().clamp(max=self.embedding.num_embeddings - 1)
        found: torch.Tensor = self.out(self.scores(self.embedding(tokens).mean((1, 2))).tanh())
        return found


def _wide(recipe: Recipe) -> nn.Module:
    """A matrix of 12,000 to 270,000 elements, rarely a multiple of 16: up to three blocks."""
    rows = 8 * recipe.width + 3
    columns = 9 * recipe.width + 1
    return _Flat(
        nn.Linear(recipe.features, rows),
        nn.ReLU(),
        nn.Linear(rows, columns),
        nn.Tanh(),
        nn.Linear(columns, recipe.width),
    )


def _convolution(recipe: Recipe, norm: nn.Module) -> nn.Module:
    return _Image(nn.Conv2d(1, recipe.width, 3, padding=1), norm, nn.ReLU())


def _group_norm(recipe: Recipe) -> nn.Module:
    groups = 2 if recipe.width % 2 == 0 else 1
    return _convolution(recipe, nn.GroupNorm(groups, recipe.width))


_BODIES: Final[dict[Model, Callable[[Recipe], nn.Module]]] = {
    "mlp": lambda recipe: _Flat(nn.Linear(recipe.features, recipe.width), nn.ReLU()),
    "wide": _wide,
    "batch_norm": lambda recipe: _convolution(recipe, _BatchNorm(recipe.width)),
    "cumulative_norm": lambda recipe: _convolution(recipe, _BatchNorm(recipe.width, momentum=None)),
    "group_norm": _group_norm,
    "lstm": _Recurrent,
    "attention": _Attention,
    "embedding": _Embedding,
    "spectral_norm": lambda recipe: _Flat(
        spectral_norm(nn.Linear(recipe.features, recipe.width)), nn.ReLU()
    ),
    "weight_norm": lambda recipe: _Flat(
        weight_norm(nn.Linear(recipe.features, recipe.width)), nn.ReLU()
    ),
}


class _Empty(nn.Module):
    def __init__(self, _hidden: int) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.empty.sum()


class _Scalar(nn.Module):
    def __init__(self, _hidden: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class _Counter(nn.Module):
    """Counts forward passes and positive values, and scales by the first."""

    calls: torch.Tensor
    positive: torch.Tensor

    def __init__(self, _hidden: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("positive", torch.zeros(3, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.positive[1] += int((x > 0).sum())
        return x / (1 + 0.01 * float(self.calls % 10))


class _Rebound(nn.Module):
    mean: torch.Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = DECAY * self.mean + (1 - DECAY) * x.detach().mean(0)
        return x - self.mean


class _Lazy(nn.Module):
    mean: torch.Tensor | None

    def __init__(self, _hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().mean(0)
        if self.training:
            self.mean = now if self.mean is None else DECAY * self.mean + (1 - DECAY) * now
        return x - (now if self.mean is None else self.mean)


class _Transient(nn.Module):
    largest: torch.Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(hidden), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.largest.mul_(DECAY).add_((1 - DECAY) * x.detach().abs().amax(0))
        return x / (1 + self.largest.clone())


class _Tied(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return found


class _Frozen(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(hidden, hidden)
        self.layer.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x))


class _Sometimes(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift if float(x.detach().sum()) > 0 else x


class _Never(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class History:
    """An object that no state dict has."""

    steps = 0


class Extra(nn.Module):
    """Multiplies by what it counts, which only its extra state has."""

    def __init__(self, _hidden: int) -> None:
        super().__init__()
        self.history = History()

    def count(self) -> None:
        """Count a step."""
        self.history.steps += 1

    def get_extra_state(self) -> dict[str, int]:
        """What it counts."""
        return {"counted": self.history.steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """The inverse of `get_extra_state`."""
        self.history.steps = state["counted"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.1 * (self.history.steps % 3))


_PARTS: Final[dict[str, Callable[[int], nn.Module]]] = {
    "empty": _Empty,
    "scalar": _Scalar,
    "counter": _Counter,
    "rebound": _Rebound,
    "lazy": _Lazy,
    "transient": _Transient,
    "tied": _Tied,
    "frozen": _Frozen,
    "sometimes": _Sometimes,
    "never": _Never,
    "extra": Extra,
}


def loss_of(logits_BC: torch.Tensor, classes_B: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """The mean cross-entropy, in float32 or wider."""
    wide = logits_BC if logits_BC.dtype == torch.float64 else logits_BC.float()
    return F.cross_entropy(wide, classes_B)
