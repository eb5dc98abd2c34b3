"""Every exception that holdfast raises.

    HoldfastError
    ├── JobError            the job, task or data is wrong: the user can fix it
    │   └── NonFiniteError  a gradient contains NaN or infinity
    ├── DataError           a data set raised while it was read
    ├── EngineError         a cluster manager refuses agents, or does not answer
    ├── CheckpointError     a checkpoint is missing, corrupt or cannot be written
    ├── ProtocolError       another process broke the protocol
    ├── HardwareError       a worker computed something wrongly; it is replaced
    │   └── ReplicaError    a worker's replica is wrong; all restart from a checkpoint
    ├── NoStateError        a worker has no state to start from; it is replaced
    │   └── UntrustedStateError   no other worker has one either; all restart from a checkpoint
    ├── OutOfMemory         the host or a GPU had too little memory for the run
    ├── Interrupted         the run was ended before it was done, on request
    ├── BenchmarkFailed     a benchmark ended without a result
    ├── WorkerFailed        a worker died or raised; names the rank that is the root cause
    └── Aborted             the generation that this process takes part in is over

What each means for the run of a worker that raises it is in `MEANINGS`. A message says what
happened, where (file, key, rank) and what to do next.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from traceback import FrameSummary, TracebackException
from typing import Final

_OWN_FILES: Final = __file__.removesuffix("errors.py")
"""Prefix of the paths of holdfast's own files."""
_PYTHONS_FILES: Final = traceback.__file__.removesuffix("traceback.py")


class HoldfastError(Exception):
    """The root: catch it to catch everything that holdfast raises."""


class JobError(HoldfastError):
    """The job, its task or its data cannot be run as it stands."""


class NonFiniteError(JobError):
    """The reduced gradient of a step contains NaN or infinity."""


class DataError(HoldfastError):
    """The user's data set raised in a process that read it; its traceback is in a note."""


class EngineError(HoldfastError):
    """The engine cannot place a run's agents: too little is free, or it does not answer."""


class CheckpointError(HoldfastError):
    """A checkpoint is missing, corrupt, or could not be made durable."""


class ProtocolError(HoldfastError):
    """A peer process broke the protocol that it shares with this one."""


class HardwareError(HoldfastError):
    """A worker's processor or memory gave other bits than another one for the same computation."""


class ReplicaError(HardwareError):
    """A worker's replica differs from others': no state since the last checkpoint is trusted."""


class NoStateError(HoldfastError):
    """A worker has no state to start from: its donor failed, and its initial values are gone."""


class UntrustedStateError(NoStateError):
    """A worker's state may hold what a wrong replica has contributed to it."""


class OutOfMemory(HoldfastError):
    """A worker was refused memory, or was OOM-killed; the message names its rank."""


class Interrupted(HoldfastError):
    """The run was ended at once, or did not end in time, when it was asked to."""


class WorkerFailed(HoldfastError):
    """A worker died or raised. Its `__cause__` is a `RankTraceback`, if it raised.

    Attributes:
        rank: The root cause; cascading failures are not named.
    """

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class BenchmarkFailed(HoldfastError):
    """A benchmark ended without a result.

    Attributes:
        code: Its exit code.
    """

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"bench {name} ended with {code}; what it printed is above")
        self.code = code


class RankTraceback(Exception):
    """Position of user code on a worker when it raised: the `__cause__` of the run's error.

    Attributes:
        rank: The worker.
        text: See `user_traceback`.
    """

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"on rank {rank}\n{text.rstrip()}")
        self.rank = rank
        self.text = text


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` without holdfast's own frames.

    An error of holdfast, except `DataError`, only shows where user code was: nothing, if there was
    none. Any other one keeps all frames if none is of user code.
    """
    shown = TracebackException.from_exception(error)
    only_where = isinstance(error, HoldfastError) and not isinstance(error, DataError)
    if all(_is_own(frame) or (only_where and _is_pythons(frame)) for frame in shown.stack):
        return "" if only_where else "".join(shown.format())
    chain = [shown]
    for each in chain:
        each.stack[:] = [frame for frame in each.stack if not _is_own(frame)]
        chain += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    text = "".join(shown.format())
    return text.removesuffix("".join(shown.format_exception_only())) if only_where else text


def _is_own(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_OWN_FILES)


def _is_pythons(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_PYTHONS_FILES) and "site-packages" not in frame.filename


class Aborted(HoldfastError):
    """The generation in which this process worked or waited is over; never a root cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Meaning, for a run, of an error that a worker has raised.

    Attributes:
        fatal: It would happen again on any worker: the run ends with this error.
        repeatable: It may happen again on this worker: the run ends if it does so too often.
        state_untrusted: No worker's state is trusted: all restart from a checkpoint.
        is_cascading: Another failure, which is counted, has caused it.
    """

    fatal: bool = False
    repeatable: bool = False
    state_untrusted: bool = False
    is_cascading: bool = False


MEANINGS: Final = {
    HoldfastError: Meaning(fatal=True),
    JobError: Meaning(fatal=True),
    NonFiniteError: Meaning(fatal=True),
    CheckpointError: Meaning(fatal=True),
    ProtocolError: Meaning(fatal=True),
    OutOfMemory: Meaning(fatal=True),
    HardwareError: Meaning(repeatable=True),
    ReplicaError: Meaning(repeatable=True, state_untrusted=True),
    NoStateError: Meaning(is_cascading=True),
    UntrustedStateError: Meaning(is_cascading=True, state_untrusted=True),
}
"""The errors that need no traceback. Any other exception is the user's: it is repeatable."""

BY_NAME: Final = {error.__name__: error for error in MEANINGS}
"""The errors of `MEANINGS` by the name that a worker reports."""
