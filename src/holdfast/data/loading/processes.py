"""Loader processes: forks of a worker that read its samples and end with it.

A fork has a copy of the data set, so only a key is sent to it, and the samples come back. Their
tensors are sent as bytes: torch would send each as a file of shared memory, with a descriptor and a
socket in /tmp that has to be removed.
"""

from __future__ import annotations

import os
import signal
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
from holdfast.errors import DataError, HoldfastError, JobError, user_traceback
from holdfast.linux.lifeline import STOP_SIGNALS, die_with_parent

Key = TypeVar("Key")
Found = TypeVar("Found")


class LoaderProcesses(Generic[Key, Found]):
    """Forks of this process that call `read`.

    Create it in the main thread, because the kernel takes the end of the creating thread for the
    end of the parent, and before any other thread starts, because forking is unsafe then.

    Args:
        read: Called in the forks, with one key each time.
        count: Number of forks.
        name: The name of the data set in errors.
    """

    def __init__(self, read: Callable[[Key], Found], count: int, name: str) -> None:
        self._name = name
        self._pool = ProcessPoolExecutor(
            count, get_context("fork"), initializer=_begin, initargs=(read, os.getpid())
        )
        self._pool.submit(os.getpid)  # the pool forks with the first call, all of them at once

    def begin(self, key: Key) -> Callable[[], Found]:
        """Start to read `key`; returns a function that waits for the samples.

        That function raises:
            DataError: The data set raised an exception.
            JobError: The samples cannot be sent from one process to another.
            HoldfastError: A loader process died.
        """
        future = self._submit(key)
        return lambda: self._result(future)

    def close(self) -> None:
        """Have each fork end after its current call, without waiting for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, key: Key) -> Future[Found | _Failure]:
        try:
            return self._pool.submit(_call, key)
        except BrokenProcessPool as error:
            raise self._dead(error) from None

    def _result(self, future: Future[Found | _Failure]) -> Found:
        try:
            result = future.result()
        except BrokenProcessPool as error:
            raise self._dead(error) from None
        except Exception as error:  # noqa: BLE001  # `_call` raises nothing: the sending failed
            raise JobError(
                f"samples of {self._name} cannot be sent from a loader process: {error}; "
                "set loader.workers=0"
            ) from None
        if isinstance(result, _Failure):
            failed = DataError(f"reading {self._name} failed with {result.error}")
            failed.add_note(result.traceback)
            raise failed from None
        return result

    def _dead(self, error: BrokenProcessPool) -> HoldfastError:
        cause = str(error.__cause__ or "killed, perhaps out of memory").strip().splitlines()
        return HoldfastError(
            f"a loader process that reads {self._name} died ({cause[-1]}); resume the run from its "
            "last checkpoint, with fewer loader.workers if memory is short"
        )


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception of a data set, and its traceback without the first line."""

    error: str
    traceback: str


_read: Callable[..., object]
"""In a loader process: the function that it calls."""


def _begin(read: Callable[..., object], parent: int) -> None:
    global _read  # noqa: PLW0603  # the pool calls functions, not objects
    die_with_parent(parent)
    for number in STOP_SIGNALS:  # a terminal sends them to all processes; the agent handles them
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # a fork cannot use the threads that its parent had
    ForkingPickler.register(torch.Tensor, _packed)
    _read = read


def _call(key: object) -> Any:
    try:
        return _read(key)
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        _, _, frames = user_traceback(error).rstrip().partition("\n")
        return _Failure(f"{type(error).__name__}: {error}", f"In a loader process:\n{frames}")


def _packed(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """Form of a sent tensor: the range of memory that it uses, and its position there.

    Strides and alignment are kept, because kernels may sum in another order if they differ.
    """
    size = tuple(tensor.shape)
    stride = tensor.stride()
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
