"""Every exception that holdfast raises.

    HoldfastError
    ├── JobError            the job, task or data is wrong: the user can mend it
    │   └── NonFiniteError  a gradient came out as NaN or infinity
    ├── DataError           a data set raised while it was read
    ├── CheckpointError     a checkpoint is missing, damaged or cannot be written
    ├── ProtocolError       another process said something that it must not say
    ├── HardwareError       a worker computed something wrongly; another takes its place
    │   └── ReplicaError    a worker's replica is wrong; all go back to a checkpoint
    ├── NoStateError        a worker has no state to start from; it is replaced
    │   └── UntrustedStateError   nor has any other; all go back to a checkpoint
    ├── OutOfMemory         the host or a GPU had too little memory for the run
    ├── Interrupted         whoever asked for the run has ended it before it was done
    ├── WorkerFailed        a worker died or raised; it names the rank that is to blame
    └── Aborted             the generation that this process takes part in is over

A message says what happened, where (file, key, rank) and what to do next.
"""

from __future__ import annotations

from typing import Final


class HoldfastError(Exception):
    """The root: catch it to catch everything that holdfast raises."""


class JobError(HoldfastError):
    """The job, its task or its data cannot be run as it stands."""


class NonFiniteError(JobError):
    """The reduced gradient of a step holds a NaN or an infinity."""


class DataError(HoldfastError):
    """The user's data set raised in a process that read it; its traceback is in a note."""


class CheckpointError(HoldfastError):
    """A checkpoint is missing, damaged, or could not be made durable."""


class ProtocolError(HoldfastError):
    """A peer process broke the protocol that it shares with this one."""


class HardwareError(HoldfastError):
    """A worker's processor or memory gave other bits than another one for the same computation."""


class ReplicaError(HardwareError):
    """A worker's replica differs from others': no state since the last checkpoint counts."""


class NoStateError(HoldfastError):
    """A worker has no state to start from: its donor was lost, and its initial values are gone."""


class UntrustedStateError(NoStateError):
    """A worker's state may hold what a wrong replica has contributed to it."""


class OutOfMemory(HoldfastError):
    """A worker was refused memory, or killed for want of it; the message names its rank."""


class Interrupted(HoldfastError):
    """The run was ended at once, or did not end in time, when it was asked to."""


class WorkerFailed(HoldfastError):
    """A worker died or raised.

    Attributes:
        rank: The worker to blame; its victims are not named.
        traceback: The worker's own traceback, or None where it died without one.
    """

    def __init__(self, message: str, *, rank: int, traceback: str | None) -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class Aborted(HoldfastError):
    """The generation in which this process worked or waited is over; never the cause of it."""


BY_NAME: Final = {
    error.__name__: error
    for error in (
        HoldfastError,
        JobError,
        NonFiniteError,
        CheckpointError,
        ProtocolError,
        OutOfMemory,
    )
}
"""The errors that a worker's report can stand for, by name, where their traceback tells nothing."""
