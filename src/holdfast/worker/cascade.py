"""Echo: an error in one worker that the death of another has brought about.

Whoever waits for the dead in a collective of PyTorch's sees a connection close, and often before
the agent has said why. So it gives the agent a while to say that its generation is over.
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
"""How long a failed collective waits for the agent's word that another worker was lost."""

_OF_A_CONNECTION: Final = re.compile(
    "gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|tcpstore|socket", re.IGNORECASE
)


def await_abort(group: Group) -> None:
    """Give the agent time to say that another worker was lost.

    Raises:
        Aborted: It has said so.
    """
    deadline = time.monotonic() + ABORT_TIMEOUT_S
    while time.monotonic() < deadline:
        group.check_abort()
        time.sleep(ABORT_POLL_S)


def is_connection_error(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, is of a connection to other workers."""
    return any(
        isinstance(each, dist.DistError | ConnectionError)
        or (isinstance(each, RuntimeError) and _OF_A_CONNECTION.search(str(each)))
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
