"""Failure: what a worker tells its agent of an exception."""

from __future__ import annotations

import errno
import re
import traceback

import torch

from holdfast.errors import OutOfMemory
from holdfast.wire.messages import Failed


def failure(rank: int, error: BaseException) -> Failed:
    """What to tell of `error`, which has ended worker `rank`."""
    if not _lacks_memory(error):
        return Failed(
            rank=rank,
            error=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )
    asked = re.search(r"allocate ([\d.]+ \w+)", str(error))
    kind = "GPU memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    advice = "lower batch, start fewer workers or make the model smaller"
    return Failed(
        rank=rank,
        error=OutOfMemory.__name__,
        message=f"rank {rank} ran out of {kind}{f', asking for {asked[1]}' if asked else ''}: "
        f"{advice}; where it was is in its log, rank-{rank}.log",
        traceback="",
    )


def _lacks_memory(error: BaseException) -> bool:
    """Whether torch, numpy, Python or the kernel has refused memory."""
    refused = isinstance(error, MemoryError | torch.OutOfMemoryError)
    torch_refused = isinstance(error, RuntimeError) and "you tried to allocate" in str(error)
    return refused or torch_refused or getattr(error, "errno", None) == errno.ENOMEM
