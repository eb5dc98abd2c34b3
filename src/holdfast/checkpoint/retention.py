"""Retention: verifies new checkpoints and deletes old ones, in a thread of the agent.

What to keep is decided in `core.retention`. A corrupt checkpoint is quarantined if there is a
verified one, so a bad write never costs the last good checkpoint. What was verified is not written
down: after a restart of the agent the newest ones are verified again.

It reads the storage only when it is asked to. While workers are about to restore, what they cannot
use must not vanish: they end the run rather than begin it again from nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest, PartFile
from holdfast.checkpoint.reader import read_part
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.core.retention import Condition, FoundCheckpoint, decide
from holdfast.errors import CheckpointError

CLOSE_S: Final = 3.0
"""How long the work that is left at the end of the agent may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCorrupt:
    """A checkpoint does not match its digests.

    Attributes:
        step: Its step.
        location: Where it is now; if there is a verified checkpoint, in quarantine.
        file: The file in which the damage was found.
        reason: What is wrong with it.
    """

    step: int
    location: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnreadable:
    """The storage reported an error while a checkpoint was read; it is tried again later."""

    step: int
    location: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFailed:
    """A pass ended early; the next one begins again."""

    reason: str


RetentionEvent = CheckpointCorrupt | CheckpointUnreadable | RetentionFailed


class Retention:
    """Works from `__enter__` to `__exit__`.

    Args:
        store: The checkpoints of the run.
        keep: How many to keep besides that of the best evaluation.
        report: Called with each event once, from the thread.
    """

    def __init__(
        self, store: CheckpointStore, keep: int, report: Callable[[RetentionEvent], None]
    ) -> None:
        self._store, self._keep, self._report = store, keep, report
        self._verified: set[str] = set()  # digests of manifests
        self._reported: set[RetentionEvent] = set()
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: it is the end
        self._deadline = math.inf
        self._thread = threading.Thread(target=self._work, name="retention", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline = time.monotonic() + CLOSE_S
        self._requests.put(False)
        self._thread.join(CLOSE_S + 1)  # a storage that hangs must not keep the agent

    def request(self) -> None:
        """Have it read the storage, where there may be a new checkpoint; returns at once."""
        self._requests.put(True)

    def _work(self) -> None:
        while self._requests.get():
            try:
                self._pass()
            except Exception as error:  # noqa: BLE001  # the thread outlives it
                self._report_once(RetentionFailed(reason=f"{type(error).__name__}: {error}"))

    def _pass(self) -> None:
        checkpoints = {
            name: FoundCheckpoint(name=name, step=names.step_of(name))
            for name in self._store.committed()
        }
        corrupt = list[CheckpointCorrupt]()
        while (decision := decide([*checkpoints.values()], self._keep)).verify is not None:
            each = self._verify(checkpoints[decision.verify], corrupt)
            if each is None:
                return
            checkpoints[each.name] = each
        for name in decision.delete:
            self._store.delete(name)
        for event in corrupt:
            now = self._quarantine(event) if decision.has_verified else event
            if now is not None:
                self._report_once(now)

    def _verify(
        self, checkpoint: FoundCheckpoint, corrupt: list[CheckpointCorrupt]
    ) -> FoundCheckpoint | None:
        """What a checkpoint turns out to be; None if there is no time left to find out."""
        where, file = self._store.location(checkpoint.name), MANIFEST
        try:
            manifest = self._store.manifest(checkpoint.name)
            if manifest.sha256 not in self._verified:
                for part in manifest.parts:
                    file = part.file
                    if not self._is_read(checkpoint.name, manifest, part):
                        return None
        except CheckpointError as error:
            corrupt.append(
                CheckpointCorrupt(
                    step=checkpoint.step, location=where, file=file, reason=str(error)
                )
            )
            return replace(checkpoint, condition=Condition.CORRUPT)
        except OSError as error:
            if checkpoint.name in self._store.committed():  # else workers have quarantined it
                self._report_once(
                    CheckpointUnreadable(
                        step=checkpoint.step, location=where, file=file, reason=str(error)
                    )
                )
            return replace(checkpoint, condition=Condition.UNREADABLE)
        self._verified.add(manifest.sha256)
        best = None if manifest.best.value is None else manifest.best.step
        return replace(checkpoint, condition=Condition.VERIFIED, best_step=best)

    def _is_read(self, name: str, manifest: Manifest, part: PartFile) -> bool:
        """Read a part back; returns whether there was time for all of it."""
        scratch = memoryview(bytearray(parts.CHUNK_BYTES))
        chunks = read_part(
            self._store.storage,
            name,
            manifest,
            part,
            lambda start, end: scratch[: end - start],
            cached=False,
        )
        return all(time.monotonic() <= self._deadline for _ in chunks)

    def _quarantine(self, event: CheckpointCorrupt) -> CheckpointCorrupt | None:
        """Quarantine a corrupt checkpoint; None if workers have done so themselves."""
        try:
            name = self._store.quarantine(names.checkpoint_name(event.step))
        except FileNotFoundError:
            return None
        except CheckpointError:  # there is no name left for it
            return event
        return replace(event, location=self._store.location(name))

    def _report_once(self, event: RetentionEvent) -> None:
        if event not in self._reported:
            self._reported.add(event)
            self._report(event)
