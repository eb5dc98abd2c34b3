"""A task that trains as another one does, but has a worker exit once, at the start of a step.

No process of this host reaches workers of others, but the code of a job does: `own_recovery` puts
this source next to that of the other task, and adds a line that calls `faulty`. So it imports
nothing of this package, which other hosts may lack.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.find import open_arena
from holdfast.arena.memory import Arena
from holdfast.tasks import reference
from holdfast.tasks.code import located
from holdfast.worker.fit import fit
from holdfast.worker.session import Session


def faulty(task: str, rank: int, step: int) -> Callable[[Session], None]:
    """A task that trains as another one does, with a fault.

    Args:
        task: The other one; its code is next to this file.
        rank: The worker that exits.
        step: Steps that it commits first; 0: it never exits.
    """
    found: Any = reference.load(located(task, Path(__file__).parents[1]))

    def train(session: Session) -> None:
        if step:
            _request_exit(rank, step)
        if isinstance(found, type):
            fit(session, found(session.job))
        else:
            found(session)

    return train


def _request_exit(rank: int, step: int) -> None:
    """Request the exit in the arena of this worker's host, unless it has been there already."""
    fd = open_arena(os.getpid())
    assert fd is not None
    requests = FaultRequests(Arena(fd), rank)
    if not requests.acknowledged(InProcessFault.EXIT)[0]:
        requests.request(InProcessFault.EXIT, step=step, seconds=0.0)
