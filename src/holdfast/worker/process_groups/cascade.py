"""Cascade: a failure of one worker that the death of another has triggered.

A worker in a collective of PyTorch sees the connection to the dead one close, often before the
agent has reported the death. So it waits a while for the agent to end the generation.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

import torch.distributed as dist

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.collectives.group import Group

ABORT_TIMEOUT_S: Final = 5.0
"""Time that a worker waits after a failed collective for the agent to report another failure."""

_OF_A_CONNECTION: Final = re.compile(
    "gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|tcpstore|socket", re.IGNORECASE
)


def await_abort(group: Group) -> None:
    """Give the agent time to report that another worker has failed.

    Raises:
        Aborted: It has.
    """
    deadline = time.monotonic() + ABORT_TIMEOUT_S
    while time.monotonic() < deadline:
        group.check_abort()
        time.sleep(ABORT_POLL_S)


def is_connection_error(error: BaseException) -> bool:
    """True if an exception, or a cause of it, is about a connection to other workers."""
    return any(
        isinstance(each, dist.DistError | ConnectionError)
        or (isinstance(each, RuntimeError) and _OF_A_CONNECTION.search(str(each)))
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
