"""Blame: why a worker is gone, in words, and whether there is use in another one."""

from __future__ import annotations

import signal
from typing import Final

from holdfast import errors
from holdfast.core.protocol import Failure
from holdfast.errors import OutOfMemory
from holdfast.linux.host_memory import available
from holdfast.wire.messages import FailedMessage

_FROM_OUTSIDE: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
"""What somebody else sends; the rest a process brings upon itself."""


def failure_of(
    rank: int, status: int, last_words: FailedMessage | None, *, hung: str, out_of_memory: bool
) -> Failure:
    """The failure of a worker.

    Args:
        rank: The worker.
        status: Its exit status; the negative number of the signal that killed it.
        last_words: What it has said of its failure.
        hung: Why its agent has ended it, if it has.
        out_of_memory: Whether the kernel has killed somebody for memory just before.
    """
    if last_words is not None:
        return _as_told(last_words)
    if hung:
        what, _, _ = hung.partition(" for ")  # without the seconds, which differ every time
        return Failure(cause=f"hung: it {what}", repeatable=not what.startswith("was stopped"))
    if status == -signal.SIGKILL and out_of_memory:
        return Failure(
            cause=killed_for_memory(f"rank {rank}"), error=OutOfMemory.__name__, fatal=True
        )
    return Failure(cause=end_of(status), repeatable=-status not in _FROM_OUTSIDE)


def end_of(status: int) -> str:
    """What an exit status says, or the negative number of a signal."""
    if status >= 0:
        return f"exited {status}"
    known = -status in set(signal.Signals)
    return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}"


def _as_told(words: FailedMessage) -> Failure:
    """The failure of a worker that has said what was wrong."""
    if words.error in errors.BY_NAME:
        return Failure(cause=words.message, error=words.error, fatal=True)
    if words.error == errors.HardwareError.__name__:
        return Failure(cause=words.message, repeatable=True)
    if words.error == errors.NoStateError.__name__:
        return Failure(cause=words.message, is_cascading=True)
    if words.error == errors.UntrustedStateError.__name__:
        return Failure(cause=words.message, is_cascading=True, state_untrusted=True)
    if words.error == errors.ReplicaError.__name__:
        return Failure(cause=words.message, repeatable=True, state_untrusted=True)
    return Failure(
        cause=f"raised {words.error}: {words.message}", traceback=words.traceback, repeatable=True
    )


def killed_for_memory(who: str) -> str:
    """What to say where the kernel has ended a process for want of memory."""
    return (
        f"{who} was killed by the kernel, which ran out of {available().limit}: lower batch, start "
        "fewer workers or allow more, and resume the run from its last checkpoint"
    )
