"""Rounded values: each element keeps its place and has fewer bits.

    bf16    16 bits: the upper half of a float32
    int8     8 bits, and a scale for every 256 elements
    4bit     4 bits, and a scale for every 128 elements

A scale is the largest magnitude of its block, over the largest integer. Within a block, all values
are multiples of it: the error of each is at most half of it.

Source: for integers with a scale per block, T. Dettmers et al., 8-bit optimizers via block-wise
quantization, ICLR 2022; the scheme is linear here.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from holdfast.collectives.compression.codec import padded

_SCALE_BYTES: Final = 4


class Bf16:
    """Implements `Codec`: rounded to bfloat16."""

    def size(self, count: int) -> int:
        """Implements `Codec.size`."""
        return padded(2 * count)

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.encode`."""
        out.view(torch.bfloat16)[: len(values)].copy_(values)

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.decode`."""
        out.copy_(data.view(torch.bfloat16)[: len(out)])


class Int8:
    """Implements `Codec`: integers from -127 to 127."""

    BLOCK: Final = 256

    def size(self, count: int) -> int:
        """Implements `Codec.size`."""
        return padded(count + _SCALE_BYTES * _num_blocks(count, self.BLOCK))

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.encode`."""
        scales, integers = _quantized(values, self.BLOCK, 127)
        at = _write_scales(scales, out)
        out[at : at + len(values)] = integers.view(torch.uint8)[: len(values)]

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.decode`."""
        scales, rest = _read_scales(data, len(out), self.BLOCK)
        _multiply(rest[: len(out)].view(torch.int8), scales, out, self.BLOCK)


class FourBit:
    """Implements `Codec`: integers from -7 to 7. A byte has one of the first half of the piece, and
    one of the second half.
    """

    BLOCK: Final = 128
    _ZERO: Final = 8

    def size(self, count: int) -> int:
        """Implements `Codec.size`."""
        return padded(-(-count // 2) + _SCALE_BYTES * _num_blocks(count, self.BLOCK))

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.encode`."""
        scales, integers = _quantized(values, self.BLOCK, 7)
        at = _write_scales(scales, out)
        half = -(-len(values) // 2)
        digits = integers[: 2 * half].add_(self._ZERO).view(torch.uint8)
        torch.bitwise_or(digits[:half], digits[half:] << 4, out=out[at : at + half])

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Implements `Codec.decode`."""
        scales, rest = _read_scales(data, len(out), self.BLOCK)
        half = -(-len(out) // 2)
        digits = torch.cat([rest[:half] & 15, rest[:half] >> 4])
        integers = digits.view(torch.int8).sub_(self._ZERO)
        _multiply(integers[: len(out)], scales, out, self.BLOCK)


def _num_blocks(count: int, block: int) -> int:
    return -(-count // block)


def _quantized(values: torch.Tensor, block: int, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of blocks, float32[blocks], and integers of whole blocks, int8[n]."""
    missing = -len(values) % block
    blocks = (functional.pad(values, (0, missing)) if missing else values).view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True).div_(largest)
    # Of a block of zeros, the scale is 0, and so is what is decoded.
    scaled = (blocks / scales).nan_to_num_(0.0, 0.0, 0.0).round_().clamp_(-largest, largest)
    return scales.view(-1), scaled.to(torch.int8).view(-1)


def _write_scales(scales: torch.Tensor, out: torch.Tensor) -> int:
    """Write scales first; returns the bytes that they take."""
    at = _SCALE_BYTES * len(scales)
    out[:at].view(torch.float32).copy_(scales)
    return at


def _read_scales(data: torch.Tensor, count: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = _SCALE_BYTES * _num_blocks(count, block)
    return data[:at].view(torch.float32), data[at:]


def _multiply(integers: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Multiply each block of integers by its scale."""
    whole = len(out) // block * block
    torch.mul(
        integers[:whole].view(-1, block),
        scales[: whole // block, None],
        out=out[:whole].view(-1, block),
    )
    if whole < len(out):
        torch.mul(integers[whole:], scales[-1], out=out[whole:])
