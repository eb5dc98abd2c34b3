"""Loader processes: forks of a worker that read its samples for it, and that die with it.

A fork has the data set as it was, so nothing of that need be sent. What goes to a fork is a key,
and what comes back is the samples. Their tensors come as bytes: torch would send each as a file of
shared memory, which takes a descriptor, a socket in /tmp, and somebody who removes that.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.errors import DataError, HoldfastError, JobError
from holdfast.linux.lifeline import STOP_SIGNALS, die_with_parent

Key = TypeVar("Key")
Found = TypeVar("Found")


class LoaderProcesses(Generic[Key, Found]):
    """Forks of this process that call `read`.

    Make it in the main thread, whose end is what the kernel takes for the parent's, and before
    there are others: a process with threads is not safely forked.

    Args:
        read: Called in the forks with a key each.
        count: Forks.
        name: What errors call the data set.
    """

    def __init__(self, read: Callable[[Key], Found], count: int, name: str) -> None:
        self._name = name
        self._pool = ProcessPoolExecutor(
            count, get_context("fork"), initializer=_begin, initargs=(read, os.getpid())
        )
        self._pool.submit(os.getpid)  # the pool forks with the first call, all of them at once

    def begin(self, key: Key) -> Callable[[], Found]:
        """Have `key` read; what is returned waits for the samples and gives them.

        It raises:
            DataError: The data set raised.
            JobError: What it gave cannot be sent from one process to another.
            HoldfastError: A loader process died.
        """
        future = self._submit(key)
        return lambda: self._result(future)

    def close(self) -> None:
        """Let the forks end, after what each has in hand; waits for none of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, key: Key) -> Future[Found | _Failure]:
        try:
            return self._pool.submit(_call, key)
        except BrokenProcessPool as error:
            raise self._dead(error) from None

    def _result(self, future: Future[Found | _Failure]) -> Found:
        try:
            found = future.result()
        except BrokenProcessPool as error:
            raise self._dead(error) from None
        except Exception as error:  # noqa: BLE001  # `_call` raises nothing: the sending failed
            raise JobError(
                f"what {self._name} gives cannot be sent from a loader process: {error}; "
                "set loader.workers=0"
            ) from None
        if isinstance(found, _Failure):
            failed = DataError(f"reading {self._name} failed with {found.error}")
            failed.add_note(found.traceback)
            raise failed from None
        return found

    def _dead(self, error: BrokenProcessPool) -> HoldfastError:
        cause = str(error.__cause__ or "killed, perhaps for want of memory").strip().splitlines()
        return HoldfastError(
            f"a loader process that reads {self._name} died ({cause[-1]}); resume the run from its "
            "last checkpoint, with fewer loader.workers if memory is short"
        )


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a data set raised, and where, without the first line of the traceback."""

    error: str
    traceback: str


_read: Callable[..., object]
"""In a loader process: what it was forked to call."""


def _begin(read: Callable[..., object], parent: int) -> None:
    global _read  # noqa: PLW0603  # the pool hands each call to a function, not to an object
    die_with_parent(parent)
    for number in STOP_SIGNALS:  # sent to the whole tree, they are for the agent
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # a fork cannot use the threads that its parent had
    ForkingPickler.register(torch.Tensor, _packed)
    _read = read


def _call(key: object) -> Any:
    try:
        return _read(key)
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        lines = traceback.format_exc().splitlines()
        return _Failure(
            f"{type(error).__name__}: {error}", "\n".join(["In a loader process:", *lines[1:]])
        )


def _packed(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """How a tensor is sent: as the stretch of memory that it lies in, and where in that.

    Strides and alignment are kept: kernels may sum in another order where they differ.
    """
    size, stride = tuple(tensor.shape), tensor.stride()
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    start, span = (tensor.storage_offset(), 1 + reach) if tensor.numel() else (0, 0)
    lead = start % (ALIGNMENT // tensor.itemsize)
    memory = tensor.as_strided((lead + span,), (1,), start - lead)
    return _unpacked, (memory.view(torch.uint8).numpy(), tensor.dtype, size, stride, lead)


def _unpacked(
    memory: npt.NDArray[np.uint8],
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    lead: int,
) -> torch.Tensor:
    aligned = torch.from_numpy(memory).clone()
    return aligned.view(dtype).as_strided(size, stride, lead)
