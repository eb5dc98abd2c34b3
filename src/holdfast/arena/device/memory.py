"""Device memory: an allocation of one worker that other processes can read, and that outlives it.

    owner ── descriptor ─▶ agent, which only holds it ─▶ workers: map it, and copy from it

The memory exists as long as a process holds its descriptor or has it mapped. Only its owner writes
to it. There are two backings: `CudaMemory` on a GPU, and a memfd for tensors on the CPU.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

import torch

from holdfast.arena.device.cuda import CudaMemory, CudaPeer
from holdfast.arena.pages import map_file

PROBE_BYTES: Final = 64 << 20
"""The longest pattern that a process reads from another one to see that it can."""


class OwnMemory(Protocol):
    """Memory of this process.

    Attributes:
        fd: Descriptor, which other processes open it by.
        bytes: All of it, uint8[size], on the device; zero at first.
    """

    fd: int
    bytes: torch.Tensor


class PeerMemory(Protocol):
    """Memory of another process, mapped in this one."""

    def read(self, start: int, target: torch.Tensor) -> None:
        """Copy the bytes from `start` on into `target`, uint8[n], contiguous, on the device of this
        process. A GPU does it in the order of its current stream.
        """
        ...

    def close(self) -> None:
        """Unmap it. Nothing reads it any more."""
        ...


class MemfdMemory:
    """Memory of this process for tensors on the CPU.

    Args:
        size_bytes: Its size.

    Raises:
        OSError: There is not enough.
    """

    def __init__(self, size_bytes: int) -> None:
        self.fd = os.memfd_create("holdfast-device", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self.bytes = torch.frombuffer(map_file(self.fd, size_bytes, 0), dtype=torch.uint8)


class MemfdPeer:
    """Memory of another process for tensors on the CPU.

    Args:
        fd: Its descriptor; the caller closes it.
        size_bytes: Its size.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._bytes = torch.frombuffer(map_file(fd, size_bytes, 0), dtype=torch.uint8)

    def read(self, start: int, target: torch.Tensor) -> None:
        """Implements `PeerMemory.read`."""
        target.copy_(self._bytes[start : start + target.numel()])

    def close(self) -> None:
        """Implements `PeerMemory.close`."""
        del self._bytes


def allocate(device: torch.device, size_bytes: int) -> OwnMemory:
    """Memory of this process on `device`.

    Raises:
        OSError: There is not enough, or none that other processes can map.
    """
    return MemfdMemory(size_bytes) if device.type == "cpu" else CudaMemory(device, size_bytes)


def open_peer(device: torch.device, fd: int, size_bytes: int) -> PeerMemory:
    """Memory of another process, mapped for reading on `device`.

    Args:
        device: Device of this process.
        fd: Descriptor of the memory, which is closed.
        size_bytes: Its size.

    Raises:
        OSError: It cannot be mapped.
    """
    try:
        if device.type == "cpu":
            return MemfdPeer(fd, size_bytes)
        return CudaPeer(device, fd, size_bytes)
    finally:
        os.close(fd)


def pattern(seed: int, like: torch.Tensor) -> torch.Tensor:
    """Bytes that tell places and seeds apart, of the size and device of another tensor: what one
    process writes to its memory, so that another one can compare what it reads.
    """
    words = torch.arange(-(-len(like) // 8), device=like.device)
    return (words * 0x9E3779B97F4A7C1 + seed).view(torch.uint8)[: len(like)]
