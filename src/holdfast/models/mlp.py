"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class MultilayerPerceptron(nn.Module):
    """Linear layers with ReLU and dropout between them.

    Args:
        inputs: Features of a sample, with all its dimensions flattened.
        hidden: Widths of the hidden layers.
        classes: Number of outputs.
        dropout: Probability that a hidden feature is dropped in training.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for width_in, width_out in pairwise([inputs, *hidden]):
            layers += [nn.Linear(width_in, width_out), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear([inputs, *hidden][-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32[n, …] to logits, float32[n, classes]."""
        logits: torch.Tensor = self.layers(x)
        return logits
