"""Failure: what a worker reports to its agent about an exception."""

from __future__ import annotations

import errno
import re
from typing import Final

import torch

from holdfast.core.failures import Report
from holdfast.errors import BY_NAME, DataError, HoldfastError, JobError, OutOfMemory, user_traceback
from holdfast.wire.messages import FailedMessage
from holdfast.worker.devices import explain

MESSAGE_CHARS: Final = 4_000
TRACEBACK_CHARS: Final = 32_000
"""The most that is reported of a message, which may show a whole batch, and of a traceback; the log
has the rest."""


def failure(rank: int, error: BaseException) -> FailedMessage:
    """The report of `error`, which has ended worker `rank`."""
    error = explain(error)
    if not _lacks_memory(error):
        report = Report(
            error=_name_of(type(error)),
            message=_shortened(str(error), MESSAGE_CHARS),
            traceback=_shortened(_traceback(error), TRACEBACK_CHARS),
        )
        return FailedMessage(rank=rank, report=report)
    asked = re.search(r"allocate ([\d.]+ \w+)", str(error))
    kind = "GPU memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    size = f", asking for {asked[1]}" if asked else ""
    message = f"ran out of {kind}{size} (see rank-{rank}.log)"
    return FailedMessage(rank=rank, report=Report(error=OutOfMemory.__name__, message=message))


def _traceback(error: BaseException) -> str:
    """Traceback of user code, if that can be what is wrong."""
    is_ours = isinstance(error, HoldfastError) and not isinstance(error, JobError | DataError)
    return "" if is_ours else user_traceback(error)


def _name_of(kind: type[BaseException]) -> str:
    """A class's name, with its module if it is the user's and has the name of one of ours."""
    if issubclass(kind, HoldfastError) or kind.__name__ not in BY_NAME:
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"


def _shortened(text: str, limit: int) -> str:
    """`text`, without its middle if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def _lacks_memory(error: BaseException) -> bool:
    """True if torch, numpy, Python or the kernel could not allocate memory."""
    refused = isinstance(error, MemoryError | torch.OutOfMemoryError)
    torch_refused = isinstance(error, RuntimeError) and "you tried to allocate" in str(error)
    return refused or torch_refused or getattr(error, "errno", None) == errno.ENOMEM
