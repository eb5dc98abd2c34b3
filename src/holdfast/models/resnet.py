"""Residual networks for small images (He et al., "Deep Residual Learning", CVPR 2016)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Args:
        width_in: Channels that come in.
        width_out: Channels that go out.
        stride: Of the first convolution; the shortcut follows with a 1x1 convolution.
    """

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32[n, width_in, h, w] to float32[n, width_out, h / stride, w / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 with the stem for small images: one 3x3 convolution and no pooling.

    Args:
        channels: Channels of the images.
        width: Channels of the first stage; each of the other three has twice as many. The
            published network has 64.
        classes: Outputs.
    """

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    BasicBlock(widths[stage], widths[stage + 1], 1 if stage == 0 else 2),
                    BasicBlock(widths[stage + 1], widths[stage + 1], 1),
                )
                for stage in range(4)
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images, float32[n, channels, height, width], to logits, float32[n, classes]."""
        logits: torch.Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return logits
