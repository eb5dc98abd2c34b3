"""Checkpoints: performs the checkpoint actions of an agent in a thread, and logs their results.

    parts are staged ─▶ prepare: a draft is written ─▶ result of all ─▶ published, or discarded

A disk may take seconds, and the agent must send heartbeats meanwhile. Actions are performed in
their order. Old checkpoints are deleted by the writer, which verifies newer ones before.

If a generation ends, no result comes for its drafts. They are published before anything is done for
the next generation, as they may be the newest that this host has. What the generation has only
begun to write is removed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Self

from holdfast.arena.memory import Arena
from holdfast.checkpoint import names
from holdfast.checkpoint.commit import Completed, Prepared, Write, complete, prepare
from holdfast.checkpoint.recorded import find_newest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.actions import (
    CheckpointAction,
    CompleteCheckpoint,
    FindCheckpoint,
    KeepSnapshot,
    PrepareCheckpoint,
    RemovePartialCheckpoints,
)
from holdfast.core.code_version import UNKNOWN, CodeVersion
from holdfast.core.events import (
    CheckpointCompleted,
    CheckpointEvent,
    CheckpointFound,
    CheckpointPrepared,
)
from holdfast.core.protocol import CheckpointPart, CheckpointResult, Draft, StoredCheckpoint
from holdfast.rundir.json_lines import EventLog

CLOSE_TIMEOUT_S: Final = 15.0
"""Time that the end of an agent may wait for a disk, to which it may write what is staged."""
OVER: Final = 1 << 32
"""More than any generation."""


class Checkpoints:
    """The checkpoints of one host; readable, for `select`, when an action has a result.

    It works from `__enter__` to `__exit__`.

    Args:
        store: Store that keeps them.
        attempt: This start of the run.
        log: The run's log of events.
        arena: Says which checkpoints are staged.
        write: Writes them.
        delete_old: Called when there is a new one, to verify it and delete older ones.
        where: Name of the host in an event; see `RunContext.where`.
        code: The user's code.

    Attributes:
        found: The names of the checkpoints that were there when workers last needed one, newest
            first.
    """

    def __init__(
        self,
        store: CheckpointStore,
        attempt: str,
        log: EventLog,
        arena: Arena,
        write: Write,
        delete_old: Callable[[], None],
        where: Mapping[str, str] = MappingProxyType({}),
        code: CodeVersion = UNKNOWN,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._log = log
        self._where = where
        self._arena = arena
        self._write = write
        self._code = code
        self._delete_old = delete_old
        self.found: Sequence[str] = ()
        self._prepared: dict[tuple[int, int], Prepared] = {}  # by generation and number
        self._actions: queue.SimpleQueue[CheckpointAction | None] = queue.SimpleQueue()
        self._results: deque[CheckpointEvent | Exception] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._actions.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def fileno(self) -> int:
        return self._wake

    def perform(self, action: CheckpointAction) -> None:
        """Perform an action after those before it; returns at once."""
        self._actions.put(action)

    def results(self) -> list[CheckpointEvent]:
        """The results of actions since the last call.

        Raises:
            ProtocolError: A worker has sent something that is no part.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        results = list[CheckpointEvent]()
        while self._results:
            result = self._results.popleft()
            if isinstance(result, Exception):
                raise result
            results.append(result)
        return results

    def _work(self) -> None:
        # One thread performs all of them, so none sees a checkpoint that another one is changing.
        while (action := self._actions.get()) is not None:
            try:
                result = self._performed(action)
            except Exception as error:  # noqa: BLE001  # `results` raises it
                self._report(error)
            else:
                if result is not None:
                    self._report(result)
        self._complete_before(OVER)

    def _report(self, result: CheckpointEvent | Exception) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def _performed(self, action: CheckpointAction) -> CheckpointEvent | None:
        match action:
            case FindCheckpoint(generation):
                # Whole drafts of earlier generations are published first: one may be the newest.
                self._complete_before(generation)
                return CheckpointFound(generation, self._find())
            case RemovePartialCheckpoints(generation):
                self._complete_before(generation)
                self._remove_partial(names.attempt_in(generation, self._attempt))
                self._arena.release(generation, 0)
                return None
            case PrepareCheckpoint(generation, parts):
                return CheckpointPrepared(generation, self._prepare(generation, parts))
            case KeepSnapshot(generation, number):
                self._arena.release(generation, number - 1)
                return None
            case CompleteCheckpoint(result):
                completed = self._complete(result)
                # After one that failed, older ones are all that there is: they stay.
                if not completed.error:
                    self._delete_old()
                return CheckpointCompleted(completed)

    def _find(self) -> StoredCheckpoint | None:
        """The newest checkpoint; what is partial is removed before, as one of these may be a
        checkpoint that was being replaced.

        Raises:
            CheckpointError: The storage stays out of reach.
        """
        self.found, newest = find_newest(
            self._store, self._log.read, self._log_wait, self._remove_partial
        )
        return newest

    def _log_wait(self, reason: str) -> None:
        self._log.event("storage-awaited", reason=reason, **self._where)

    def _prepare(self, generation: int, parts: Mapping[int, CheckpointPart]) -> Draft:
        attempt = names.attempt_in(generation, self._attempt)
        began = time.monotonic()
        prepared = prepare(self._store, parts, attempt, self._write, self._code)
        number = prepared.draft.number
        self._prepared[generation, number] = prepared
        # The draft has the state, or has failed: workers may stage another in its place.
        self._arena.release(generation, number)
        if prepared.differs:
            self._arena.request_comparison(generation)
        return replace(prepared.draft, write_s=time.monotonic() - began)

    def _complete(self, result: CheckpointResult) -> CheckpointResult:
        prepared = self._prepared.pop((result.generation, result.number))
        outcome = complete(self._store, prepared, result)
        self._log_outcome(outcome)
        return outcome.result

    def _complete_before(self, generation: int) -> None:
        """Publish the drafts of generations that are over, for which no result comes any more. Old
        ones are not deleted now: workers are about to restore.
        """
        for over, number in sorted(self._prepared):
            if over < generation:
                step = self._prepared[over, number].draft.step
                self._complete(CheckpointResult(generation=over, number=number, step=step))

    def _remove_partial(self, current: str = "") -> None:
        """Remove drafts, except those of the current attempt; the next resume tries again."""
        with contextlib.suppress(OSError):
            self._store.remove_partial(current)

    def _log_outcome(self, outcome: Completed) -> None:
        step = outcome.result.step
        place = {"directory": self._store.location(names.checkpoint_name(step)), **self._where}
        if outcome.is_new:
            self._log.event("checkpoint-committed", step=step, **place)
        elif reason := outcome.result.error:
            self._log.event("checkpoint-failed", step=step, reason=reason, **place)
