"""Retention: deletes old checkpoints, in a thread beside the coordinator's loop.

A checkpoint is deleted once `keep` newer ones have been read back from the disk and match their
digests, unless it is the best one. One that does not match is set aside if another one does, and
counts for nothing, so a bad write never costs the last good checkpoint. What was verified is not
written down: after a restart of the coordinator the newest ones are verified again.

It looks at the disk when it is asked to only. While workers are about to restore, what they cannot
use must not vanish: they end the run rather than begin it again from nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.checkpoint import manifest
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.verify import verify_part
from holdfast.errors import CheckpointError
from holdfast.observe.lines import EventLog

CLOSE_S: Final = 3.0
"""How long the work that is left at the end of the coordinator may take."""


class Retention:
    """The checkpoints of one run that are kept; works from `__enter__` to `__exit__`.

    Args:
        root: Their directory.
        keep: How many to keep besides the best.
        log: The run's log of events.
    """

    def __init__(self, root: Path, keep: int, log: EventLog) -> None:
        self._root, self._keep, self._log = root, keep, log
        self._verified: set[str] = set()  # digests of manifests
        self._reported: set[_Damage] = set()
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: it is the end
        self._deadline = math.inf
        self._thread = threading.Thread(target=self._work, name="retention", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline = time.monotonic() + CLOSE_S
        self._requests.put(False)
        self._thread.join(CLOSE_S + 1)  # a disk that hangs must not keep the coordinator

    def request(self) -> None:
        """Have it look at the disk, where there may be a new checkpoint; returns at once."""
        self._requests.put(True)

    def _work(self) -> None:
        while self._requests.get():
            with suppress(OSError):  # the next pass tries again
                self._look()

    def _look(self) -> None:
        """Verify the newest `keep` checkpoints, and remove older ones but the best."""
        kept, damaged = list[Manifest](), list[_Damage]()
        for directory in manifest.committed(self._root):
            if len(kept) < self._keep:
                found = self._verify(directory)
                if found is None:
                    return
                if isinstance(found, _Damage):
                    damaged.append(found)
                else:
                    kept.append(found)
            elif kept[0].best.value is None or manifest.step_of(directory) != kept[0].best.step:
                manifest.remove(directory)
        for each in damaged:
            self._report(each, set_aside=bool(kept))

    def _verify(self, directory: Path) -> Manifest | _Damage | None:
        """The manifest of a checkpoint, or how that is damaged; None if there is no time left."""
        file = manifest.MANIFEST
        try:
            found = manifest.read(directory)
            if found.sha256 not in self._verified:
                for part in found.parts:
                    file = part.file
                    for _ in verify_part(directory, part, found.layout):
                        if time.monotonic() > self._deadline:
                            return None
        except CheckpointError as error:
            return _Damage(directory=directory, file=file, reason=str(error))
        self._verified.add(found.sha256)
        return found

    def _report(self, damage: _Damage, *, set_aside: bool) -> None:
        """Log damage, once, and set the checkpoint aside if there is another one for workers to
        restore: with none at all, they would begin the run again.
        """
        aside = damage.directory
        if set_aside:
            try:
                aside = manifest.quarantine(aside)
            except FileNotFoundError:  # workers have set it aside themselves
                return
            except CheckpointError:  # there is no name left for it
                pass
        if damage not in self._reported:
            self._log.event(
                "checkpoint-corrupt",
                step=manifest.step_of(damage.directory),
                directory=str(aside),
                file=damage.file,
                reason=damage.reason,
            )
        self._reported.add(damage)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damage:
    """What is wrong with a checkpoint, and with which of its files."""

    directory: Path
    file: str
    reason: str
