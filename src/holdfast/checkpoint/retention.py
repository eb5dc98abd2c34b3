"""Retention: verifies new checkpoints and deletes old ones, in a thread of the writer.

What was verified is not written down: after a restart of the writer the newest ones are verified
again. Pins are read each time, so those that are set while a run is live count.

It reads the storage only when it is asked to. While workers are about to restore, what they cannot
use must not vanish: they end the run rather than begin it again from nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from holdfast.checkpoint.prune import Pruner
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.verify import Damage
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.rundir.json_lines import EventLog

CLOSE_S: Final = 3.0
"""Time that the work that is left at the end of the run may take."""
REST: Final = 50
"""Reading checkpoints back takes training some time, even at the lowest priority. After all of the
newest were verified, so many times as long passes until they are again; until then the newest of
these stays, and others are deleted unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFailed:
    """A pass ended early; the next one begins again."""

    reason: str


RetentionEvent = Damage | RetentionFailed


class _TimeIsUp(Exception):
    """There is no time left for the rest of a checkpoint."""


class Retention:
    """Works from `__enter__` to `__exit__`.

    Args:
        store: The checkpoints of the run.
        policy: Rules for keeping them.
        report: Called with each event once, from the thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        policy: RetentionPolicy,
        report: Callable[[RetentionEvent], None],
    ) -> None:
        self._report = report
        self._reported: set[RetentionEvent] = set()
        self._pruner = Pruner(store, policy, self._report_once, self._check_time)
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: it is the end
        self._deadline = math.inf
        self._rests_until = -math.inf
        self._has_unread = False
        self._thread = threading.Thread(target=self._work, name="retention", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A verification that is under way stops at the deadline, between two chunks.
        self._deadline = time.monotonic() + CLOSE_S
        self._requests.put(False)
        self._thread.join(CLOSE_S + 1)  # a storage that hangs must not keep the writer

    def request(self) -> None:
        """Have it read the storage, where there may be a new checkpoint; returns at once."""
        self._requests.put(True)

    def _work(self) -> None:
        while self._requests.get():
            self._try()
        if self._has_unread:
            self._try()

    def _try(self) -> None:
        try:
            self._pass()
        except _TimeIsUp:
            return
        except Exception as error:  # noqa: BLE001  # the thread outlives it
            self._report_once(RetentionFailed(reason=f"{type(error).__name__}: {error}"))

    def _pass(self) -> None:
        began = time.monotonic()
        # At the end of the run there is no later pass, so all is verified if time allows.
        verify_all = began >= self._rests_until or self._deadline < math.inf
        self._has_unread = not verify_all
        self._pruner.carry_out(self._pruner.plan(verify_all=verify_all))
        if verify_all:
            ended = time.monotonic()
            self._rests_until = ended + REST * (ended - began)

    def _check_time(self, _: int) -> None:
        """Raises: _TimeIsUp: The writer is about to end."""
        if time.monotonic() > self._deadline:
            raise _TimeIsUp

    def _report_once(self, event: RetentionEvent) -> None:
        if event not in self._reported:
            self._reported.add(event)
            self._report(event)


def log_retention_event(log: EventLog, event: RetentionEvent, where: Mapping[str, str]) -> None:
    """Log an event of retention.

    Args:
        log: The run's log of events.
        event: The event.
        where: Name of the host, if there are several.
    """
    if isinstance(event, RetentionFailed):
        log.event("retention-failed", reason=event.reason, **where)
        return
    what = {"step": event.step, "directory": event.location, "file": event.file}
    if event.is_corrupt:
        log.event("checkpoint-corrupt", **what, reason=event.reason, **where)
    else:
        log.event("checkpoint-unreadable", **what, reason=event.reason, **where)
