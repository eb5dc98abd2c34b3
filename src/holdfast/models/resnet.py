"""ResNet: residual networks (He et al., "Deep Residual Learning", CVPR 2016)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from holdfast.models.recompute import recompute


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut.

    Args:
        width_in: Input channels.
        width: Channels of the convolutions and of the output.
        stride: Stride of the first convolution and of the shortcut.
    """

    EXPANSION: ClassVar = 1
    """Output channels divided by `width`."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(width_in, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32[n, width_in, h, w] to float32[n, width, h / stride, w / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with a shortcut.

    The 3x3 convolution has the stride, as in torchvision. In the paper the first one has it and
    ignores three quarters of its input.

    Args:
        width_in: Input channels.
        width: Channels of the 3x3 convolution; the output has four times as many.
        stride: Stride of the 3x3 convolution and of the shortcut.
    """

    EXPANSION: ClassVar = 4
    """Output channels divided by `width`."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        width_out = self.EXPANSION * width
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width_out)
        self.shortcut = _shortcut(width_in, width_out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32[n, width_in, h, w] to float32[n, 4 * width, h / stride, w / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, four stages of blocks, and a linear layer on the mean over the pixels.

    Args:
        block: Class of the blocks.
        depths: Number of blocks of each stage.
        channels: Channels of the images.
        width: Width of the blocks of the first stage; it doubles in each later stage. The published
            networks have 64.
        classes: Number of outputs.
        large: True to use the published stem, which divides height and width by four, instead of
            one 3x3 convolution.
        gradient_checkpointing: True to recompute each block in the backward pass.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        channels: int,
        width: int,
        classes: int,
        large: bool,
        gradient_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.stem = _large_stem(channels, width) if large else _small_stem(channels, width)
        stages = []
        width_in = width
        for stage, depth in enumerate(depths):
            blocks = []
            stage_width = width * 2**stage
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(block(width_in, stage_width, stride))
                width_in = block.EXPANSION * stage_width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width_in, classes)
        if gradient_checkpointing:
            recompute(block for stage in stages for block in stage)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images, float32[n, channels, height, width], to logits, float32[n, classes]."""
        return self._classify(self.stages(self.stem(x)))

    def pipeline_parts(self) -> list[object]:
        """The stem, the blocks and the head, which a pipeline divides over its stages."""
        blocks = (block for stage in self.stages for block in stage.children())
        return [self.stem, *blocks, (self._classify, [self.head])]

    def _classify(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def _small_stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


def _large_stem(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _shortcut(width_in: int, width_out: int, stride: int) -> nn.Module:
    if stride == 1 and width_in == width_out:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
    )
