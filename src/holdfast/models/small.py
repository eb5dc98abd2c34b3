"""Small networks for images: a multilayer perceptron and a convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
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

    def pipeline_parts(self) -> list[nn.Module]:
        """The layers, which a pipeline divides over its stages."""
        return list(self.layers)


class AveragePool(nn.Module):
    """Average pooling to a grid of cells, as `nn.AdaptiveAvgPool2d`, whose gradient is not
    deterministic on a GPU.

    Args:
        cells: Rows and columns of the grid.
    """

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32[n, channels, height, width] to float32[n, channels, cells, cells]."""
        height, width = x.shape[-2:]
        if height % self.cells == 0 and width % self.cells == 0:
            return F.avg_pool2d(x, (height // self.cells, width // self.cells))
        rows = [x[:, :, span].mean(2) for span in self._spans(height)]
        cells = [[row[:, :, span].mean(2) for span in self._spans(width)] for row in rows]
        return torch.stack([torch.stack(row, 2) for row in cells], 2)

    def _spans(self, size: int) -> list[slice]:
        """The elements of each cell; neighbours share one where `size` is no multiple of them."""
        number = self.cells
        return [slice(at * size // number, -(-(at + 1) * size // number)) for at in range(number)]


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
            AveragePool(4),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(32 * width, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images, float32[n, channels, height, width], to logits, float32[n, classes]."""
        logits: torch.Tensor = self.layers(x)
        return logits

    def pipeline_parts(self) -> list[nn.Module]:
        """The layers, which a pipeline divides over its stages."""
        return list(self.layers)
