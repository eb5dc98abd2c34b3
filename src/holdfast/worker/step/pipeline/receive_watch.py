"""Watch: ends a receive of gloo that nothing will complete.

Gloo waits for a message without looking at anything else. A thread looks instead: at how long the
wait has lasted, and whether the sender waits at a barrier of all workers, because user code
has taken another way there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.arena.memory import Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.errors import HoldfastError

LOOK_S: Final = 1.0
"""How often the thread looks."""
LOOKS: Final = 5
"""How often a sender is seen at a barrier: what it sent before that arrives meanwhile."""


class ReceiveWatch:
    """Watches the receives of one worker.

    Args:
        group: The members of its generation.
        status: Status that this worker publishes.
        timeout_s: Limit of a wait, seconds.
        abort: Ends all waits of the library.
    """

    def __init__(
        self, group: Group, status: WorkerStatus, timeout_s: float, abort: Callable[[], object]
    ) -> None:
        self._group = group
        self._status = status
        self._timeout_s = timeout_s
        self._abort = abort
        self._wait: tuple[int, float] | None = None
        self._ended: tuple[int, float] | None = None
        threading.Thread(target=self._look, name="receive-watch", daemon=True).start()

    @contextmanager
    def of(self, sender: int) -> Iterator[None]:
        """A context in which this worker receives from the member of this rank."""
        self._wait = (sender, time.monotonic())
        yield
        self._wait = None

    def explain(self) -> None:
        """Raise the reason for which a receive was ended, if one was.

        Raises:
            Aborted: The generation is over.
            JobError: The sender is at a barrier.
            HoldfastError: It took too long.
        """
        if self._ended is None:
            return
        sender, waited_s = self._ended
        if self._group.is_ahead(sender):
            # The two barriers differ, so all members raise the same error.
            self._group.barrier(WorkerTag.STAGE, self._status[Word.COMMITTED])
        raise HoldfastError(
            f"rank {self._group.rank} waited {waited_s:.0f} s for layers of rank {sender}; raise "
            "timeout_s if a step may take that long"
        )

    def _look(self) -> None:
        watched: object = None
        looks = 0
        while self._ended is None:
            time.sleep(LOOK_S)
            wait = self._wait
            if wait is None:
                continue
            sender, began = wait
            # By looks, not by time: a process that was stopped may find its message a moment later.
            looks = looks + 1 if wait is watched and self._group.is_ahead(sender) else 0
            watched = wait
            waited_s = time.monotonic() - began
            if self._wait is wait and (looks >= LOOKS or waited_s > self._timeout_s):
                self._ended = sender, waited_s
                self._abort()
