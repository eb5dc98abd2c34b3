"""Failures: why a worker ended, whether that was a failure, and which failure caused the others.

An agent describes the end of a worker's process as an `Exit`. `judge` turns it into one of

    expected           it finished, left as told, or was killed for no fault of its own
    root cause         a failure that counts: the run recovers from it, or ends with it
    cascading failure  an end that another failure has caused: it only has to be replaced

What an error means for the run (fatal, repeatable, …) is a table: `holdfast.errors.MEANINGS`.
Events, recovery reports and the coordinator use these results and judge nothing themselves.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.core.protocol import Failure
from holdfast.errors import BY_NAME, MEANINGS, OutOfMemory

LEFT_STATUS: Final = 3
"""The exit status of a worker that left because it was told to, or its generation was over."""

_FROM_OUTSIDE: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)
"""Signals that others send. With the rest a process kills itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A worker's report of the exception that ended it.

    Attributes:
        error: The name of the exception's class.
    """

    error: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of a worker's process, as its agent sees it.

    Attributes:
        rank: The worker.
        status: Its exit status; the negative number of the signal that killed it.
        report: Its report before its end; None if it ended without one.
        hung: Reason for which its agent killed it as hung; empty if it did not.
        exhausted: The memory that ran out, in words, if the kernel has just OOM-killed a process.
        cap: The most shards of a step that it has the memory for if it ran out of memory; None if
            the others cannot compute the rest.
        advice: Remedies if it ran out of memory.
        cancelled: True if its agent killed it for no fault of its own.
        halting: True if its generation was over.
        after_failure: True if it was running when another worker of this host failed, and had not
            been resumed since.
        is_script: True if it ran a script, which may exit by itself.
        stopping: True if its run was asked to stop.
        run_over: True if its run had ended.
    """

    rank: int
    status: int
    report: Report | None = None
    hung: str = ""
    exhausted: str = ""
    cap: int | None = None
    advice: str = ""
    cancelled: bool = False
    halting: bool = False
    after_failure: bool = False
    is_script: bool = False
    stopping: bool = False
    run_over: bool = False

    @property
    def is_finished(self) -> bool:
        """True if the process ended because its script did."""
        if not self.is_script or self.cancelled:
            return False
        return self.stopping or (self.status == 0 and self.report is None)

    @property
    def is_expected(self) -> bool:
        """True if the worker was to end, or has finished."""
        left = self.status == LEFT_STATUS and self.halting
        return not self.hung and (self.cancelled or self.run_over or self.is_finished or left)

    @property
    def may_be_cascading(self) -> bool:
        """True if another failure may have caused this exit.

        A worker whose peer is gone sees an error, or a library aborts its process. A signal from
        outside is a failure of its own.
        """
        return self.status > 0 or self.status == -signal.SIGABRT


def judge(end: Exit) -> Failure:
    """The failure that an exit is, where it is not expected."""
    if end.report is not None:
        failure = _reported(end.report)
    elif end.hung:
        what, _, _ = end.hung.partition(" for ")  # without the seconds, which differ every time
        failure = Failure(cause=f"hung: it {what}", repeatable=not what.startswith("was stopped"))
    elif end.status == -signal.SIGKILL and end.exhausted:
        cause = oom_killed(end.exhausted)
        failure = Failure(cause=cause, error=OutOfMemory.__name__, fatal=True)
    else:
        failure = Failure(cause=describe(end.status), repeatable=-end.status not in _FROM_OUTSIDE)
    if failure.error == OutOfMemory.__name__:
        cause = f"{failure.cause}: {end.advice}"
        return replace(failure, cause=cause, fatal=end.cap is None, cap=end.cap)
    # After another worker's failure this one was bound to end, unless it says something worse.
    counts = failure.fatal or failure.state_untrusted or not end.after_failure or end.hung
    if counts or not end.may_be_cascading:
        return failure
    return Failure(cause=failure.cause, traceback=failure.traceback, is_cascading=True)


def root_cause(failed: Mapping[int, Failure]) -> tuple[int, Failure] | None:
    """The first of some failures, by rank in the order of their exits, that no other has caused."""
    counted = (each for each in failed.items() if not each[1].is_cascading)
    return next(counted, None)


def is_state_untrusted(failed: Mapping[int, Failure]) -> bool:
    """True if workers have failed in a way that leaves no worker's state to be trusted."""
    return any(failure.state_untrusted for failure in failed.values())


def describe(status: int) -> str:
    """An exit status, or the negative number of a signal, in words."""
    if status >= 0:
        return f"exited {status}"
    has_name = -status in set(signal.Signals)
    return f"was killed by {signal.Signals(-status).name if has_name else f'signal {-status}'}"


def oom_killed(exhausted: str) -> str:
    """The end of a process that the kernel has OOM-killed, in words."""
    return f"was OOM-killed (limit: {exhausted})"


def memory_advice(batch: int = 0, movable_shards: int = 0) -> str:
    """Remedies for a worker that ran out of memory.

    Args:
        batch: Samples of a step.
        movable_shards: Shards of a step, if each is computed by itself.
    """
    size = math.ceil(batch / max(movable_shards, 1))
    finer = math.ceil(size / 2)
    first = "lower batch"
    if movable_shards and finer < size:
        first = f"set shards={math.ceil(batch / finer)} for shards of {finer} samples, not {size}"
    return (
        f"{first}, or make the model smaller, in a new run; or resume this one with fewer workers "
        "or more memory"
    )


def _reported(report: Report) -> Failure:
    """The failure of a worker that has reported what was wrong."""
    if report.error not in BY_NAME:  # the user's own code raised
        cause = f"raised {report.error}: {report.message}"
        return Failure(cause=cause, traceback=report.traceback, repeatable=True)
    meaning = MEANINGS[BY_NAME[report.error]]
    return Failure(
        cause=report.message,
        traceback=report.traceback,
        error=report.error if meaning.fatal else "",
        fatal=meaning.fatal,
        repeatable=meaning.repeatable,
        state_untrusted=meaning.state_untrusted,
        is_cascading=meaning.is_cascading,
    )
