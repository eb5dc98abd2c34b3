"""Small networks for images: a multilayer perceptron and a convolutional network."""

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


class SmallCnn(nn.Module):
    """Two blocks of convolution, batch normalization and ReLU, then pooling and a linear layer.

    Args:
        channels: Channels of the images.
        width: Channels of the first block; the second has twice as many.
        classes: Number of outputs.
        dropout: Probability that a feature before the linear layer is dropped in training.
    """

    def __init__(self, channels: int, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(32 * width, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images, float32[n, channels, height, width], to logits, float32[n, classes]."""
        logits: torch.Tensor = self.layers(x)
        return logits
