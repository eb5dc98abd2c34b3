"""SmallCnn: a small convolutional network with batch normalization."""

from __future__ import annotations

import torch
from torch import nn


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
