"""Retention: deletes old checkpoints, in a thread beside the coordinator's loop.

A checkpoint is deleted once `keep` newer ones have been read back from the disk and match their
digests, unless it is the best one. One that does not match is set aside and counts for nothing, so
a bad write never costs the last good checkpoint. What was verified is not written down: after a
restart of the coordinator the newest ones are verified again.

It looks at the disk when it is asked to only. While workers are about to restore, what they cannot
use must not vanish: they end the run rather than begin it again from nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from contextlib import suppress
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
        kept: list[Manifest] = []
        for directory in manifest.committed(self._root):
            if len(kept) < self._keep:
                found = self._verify(directory)
                if time.monotonic() > self._deadline:
                    return
                kept += [] if found is None else [found]
            elif kept[0].best.value is None or manifest.step_of(directory) != kept[0].best.step:
                manifest.remove(directory)

    def _verify(self, directory: Path) -> Manifest | None:
        """The manifest of a checkpoint that is whole; a damaged one is set aside."""
        file = manifest.MANIFEST
        try:
            found = manifest.read(directory)
            if found.sha256 in self._verified:
                return found
            for part in found.parts:
                file = part.file
                for _ in verify_part(directory, part, found.layout):
                    if time.monotonic() > self._deadline:
                        return None
        except CheckpointError as error:
            self._set_aside(directory, file, str(error))
            return None
        self._verified.add(found.sha256)
        return found

    def _set_aside(self, directory: Path, file: str, reason: str) -> None:
        try:
            aside = manifest.set_aside(directory)
        except FileNotFoundError:  # workers have set it aside themselves
            return
        except CheckpointError:  # there is no name left for it
            aside = directory
        self._log.event(
            "checkpoint-damaged",
            step=manifest.step_of(directory),
            directory=str(aside),
            file=file,
            reason=reason,
        )
