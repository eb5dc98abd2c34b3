"""Failpoints: the points at which a worker injects faults into itself, if it is asked to.

The faults look like real ones: the worker exits, raises, is slow, computes wrong bits, or finds the
disk full. No other process is told that they are injected.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Sequence
from typing import Final

import torch

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.layout import Entry
from holdfast.arena.memory import Phase
from holdfast.arena.replica import MODEL, Replica
from holdfast.arena.worker_status import WorkerStatus

EXIT_STATUS: Final = 5
"""The exit status of a worker that was asked to exit; it has no other meaning."""

_EXPONENTS: Final = {
    torch.float64: (torch.int64, range(52, 63)),
    torch.float32: (torch.int32, range(23, 31)),
    torch.bfloat16: (torch.int16, range(7, 15)),
}
"""An integer dtype of the same width, and the bits of the exponent (IEEE 754)."""


class Failpoints:
    """The points at which one worker injects faults into itself.

    Args:
        requests: The faults that it is asked for.
        status: Status of this worker.
    """

    def __init__(self, requests: FaultRequests, status: WorkerStatus) -> None:
        self._requests = requests
        self._status = status

    def at_step(self, replica: Replica) -> None:
        """Exit, raise, be slow or corrupt the replica, before anything of a step is computed."""
        requests = self._requests
        if requests.is_due(InProcessFault.SLOW):
            self._status.enter(Phase.FORWARD)  # as if the user's code were slow
            time.sleep(requests.acknowledge(InProcessFault.SLOW))
        if requests.is_due(InProcessFault.CORRUPT):
            requests.acknowledge(InProcessFault.CORRUPT)
            corrupt(replica, random.Random(str(requests.acknowledged(InProcessFault.CORRUPT))))
        if requests.is_due(InProcessFault.EXIT):
            requests.acknowledge(InProcessFault.EXIT)
            os._exit(EXIT_STATUS)
        if requests.is_due(InProcessFault.RAISE):
            requests.acknowledge(InProcessFault.RAISE)
            raise RuntimeError("injected fault")

    def at_gradient(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Corrupt one value of a shard's gradient."""
        for fault, change in ((InProcessFault.NAN, poison), (InProcessFault.FLIP, flip)):
            if self._requests.is_due(fault) and change(_gradients(parameters)):
                self._requests.acknowledge(fault)

    def at_part(self) -> None:
        """Fail to write a part of a checkpoint.

        Raises:
            OSError: The disk is full.
        """
        if self._requests.is_due(InProcessFault.DISK_FULL):
            self._requests.acknowledge(InProcessFault.DISK_FULL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def corrupt(replica: Replica, chance: random.Random) -> str:
    """Flip one bit of a replica: a parameter, a buffer or the optimizer's state, each as likely
    as the others; returns the name of the tensor.
    """
    kinds: dict[str, list[Entry]] = {}
    for entry in replica.layout.entries:
        if entry.size_bytes and entry.name not in replica.uninitialized:
            in_buffer = entry.name.removeprefix(MODEL) in replica.buffers
            kinds.setdefault("buffer" if in_buffer else entry.name.split(".")[0], []).append(entry)
    entry = chance.choice(kinds[chance.choice(sorted(kinds))])
    replica.flat[entry.offset + chance.randrange(entry.size_bytes)] ^= 1 << chance.randrange(8)
    return entry.name


def poison(gradients: Sequence[torch.Tensor]) -> bool:
    """Make one value of `gradients` a NaN; returns whether there was one."""
    for gradient in gradients[:1]:
        gradient[(0,) * gradient.dim()] = torch.nan
    return bool(gradients)


def flip(gradients: Sequence[torch.Tensor]) -> bool:
    """Set the highest clear bit of the exponent of the largest value of `gradients`.

    The exponent of a float16 is too short for that to be detected, so the value becomes infinite.

    Returns:
        Whether there was such a bit; there is none if all values are zero.
    """
    largest = max(gradients, key=lambda gradient: float(gradient.abs().max()), default=None)
    if largest is None or not largest.any():
        return False
    place = torch.unravel_index(largest.abs().argmax(), largest.shape)
    value = largest[tuple(map(int, place))]
    if not value.isfinite():
        return False
    if value.dtype == torch.float16:
        value.fill_(torch.inf)
        return True
    integer, exponent = _EXPONENTS[value.dtype]
    bits = value.view(integer)
    bits |= 1 << next(bit for bit in reversed(exponent) if not int(bits) >> bit & 1)
    return True


def _gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    gradients = (parameter.grad for parameter in parameters)
    return [each for each in gradients if each is not None and each.numel() and not each.is_sparse]
