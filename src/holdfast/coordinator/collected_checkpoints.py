"""CollectedCheckpoints: copies of the hosts' checkpoints in the coordinator's run directory.

    a host offers its newest one ─▶ it is the first with it ─▶ it sends it ─▶ published
                                 ─▶ it is stored, or another host is sending: nothing is sent

One checkpoint at a time arrives, so what becomes old meanwhile is never sent.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from holdfast.checkpoint import names
from holdfast.checkpoint.recorded import find_newest
from holdfast.checkpoint.retention import Retention, RetentionEvent, log_retention_event
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import described, pieces, receive
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.errors import CheckpointError
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.checkpoint_service import CheckpointMessage, OfferResult

START_TIMEOUT_S: Final = 10.0
"""Time that a host that may send may take to begin."""
RESERVED_BYTES: Final = 64 << 20
"""Disk space that checkpoints leave to the journal and the logs."""


class CollectedCheckpoints:
    """The checkpoints of one run; it deletes old ones from `__enter__` to `__exit__`.

    Args:
        run_dir: The run's directory. No agent writes checkpoints to it.
        attempt: Names this start of the run.
        policy: Rules for keeping them.
        log: The run's log of events.

    Raises:
        CheckpointError: The storage stays out of reach.

    Attributes:
        is_receiving: True if one is arriving.
    """

    def __init__(self, run_dir: Path, attempt: str, policy: RetentionPolicy, log: EventLog) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._log = log
        self._store = CheckpointStore.of_run(run_dir)
        self._retention = Retention(self._store, policy, self._on_retention_event)
        self._store.remove_partial()  # of a coordinator that was killed
        self._damaged = set[str]()
        _, newest = find_newest(
            self._store, log.read, lambda reason: log.event("storage-awaited", reason=reason)
        )
        self._stored = None if newest is None else described(self._store.manifest(newest.name))
        self._expected: tuple[str, CheckpointMessage, float] | None = None
        self._reported = ""
        self.is_receiving = False

    def __enter__(self) -> Self:
        self._retention.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._retention.__exit__()

    @property
    def newest(self) -> CheckpointMessage | None:
        """The newest checkpoint that is stored."""
        return self._stored

    def offer(self, host: str, offered: CheckpointMessage, now: float) -> OfferResult:
        """Decide whether a host sends the checkpoint that it has.

        Args:
            host: The host.
            offered: Its newest checkpoint.
            now: Monotonic seconds.
        """
        stored = self._stored
        if stored is not None and (offered.step < stored.step or offered == stored):
            return OfferResult.STORED
        if self.is_receiving:
            return OfferResult.LATER
        # One host is asked at a time; if it does not begin in time, the next to offer is.
        if self._expected is not None:
            sender, _, until = self._expected
            if sender != host and now < until:
                return OfferResult.LATER
        free_bytes = shutil.disk_usage(self._run_dir).free
        if free_bytes < offered.size_bytes + RESERVED_BYTES:
            self._report(
                offered.step,
                f"{self._run_dir} has {free_bytes} bytes free, and the checkpoint needs "
                f"{offered.size_bytes} besides {RESERVED_BYTES} for logs; make space",
            )
            return OfferResult.NO_SPACE
        self._expected = host, offered, now + START_TIMEOUT_S
        return OfferResult.SEND

    def begin(self, host: str) -> CheckpointMessage:
        """Expect the checkpoint that a host was told to send; `receive` must follow.

        Raises:
            CheckpointError: It was told to send none.
        """
        expected = self._expected
        if self.is_receiving or expected is None or expected[0] != host:
            raise CheckpointError("a checkpoint that was not asked for; offer it first")
        # From here on every offer is put off until `receive` has ended.
        self._expected = None
        self.is_receiving = True
        return expected[1]

    def receive(self, host: str, wanted: CheckpointMessage, stream: Iterator[bytes]) -> None:
        """Take a checkpoint; for a thread.

        Raises:
            CheckpointError: What comes is not that checkpoint, or not all of it.
            OSError: It cannot be written.
        """
        began = time.monotonic()
        try:
            name = receive(self._store, self._attempt, stream, wanted)
            self._stored = wanted  # before another host may send
        except (CheckpointError, OSError) as error:
            self._report(wanted.step, str(error))
            raise
        finally:
            self.is_receiving = False
        self._log.event(
            "checkpoint-collected",
            step=wanted.step,
            directory=self._store.location(name),
            sender=host,
            seconds=round(time.monotonic() - began, 3),
        )
        self._retention.request()

    def pieces(self, wanted: CheckpointMessage) -> Iterator[bytes]:
        """The stream of a checkpoint, for a host without it; for a thread.

        Raises:
            CheckpointError: It is damaged. From now on an older one is the newest, if there is one.
            OSError: It cannot be read.
        """
        try:
            yield from pieces(self._store, wanted)
        except CheckpointError as error:
            self._on_damaged(wanted, str(error))
            raise

    def _on_damaged(self, damaged: CheckpointMessage, reason: str) -> None:
        name = names.checkpoint_name(damaged.step)
        if damaged != self._stored:
            return
        self._damaged.add(name)
        self._log.event(
            "checkpoint-unreadable",
            step=damaged.step,
            directory=self._store.location(name),
            reason=reason,
        )
        for older in self._store.committed():
            if older not in self._damaged:
                try:
                    self._stored = described(self._store.manifest(older))
                except (CheckpointError, OSError):
                    continue
                return
        # It stays the newest: a run must not begin again from nothing because of a bad disk.

    def _report(self, step: int, reason: str) -> None:
        """Log why a checkpoint did not arrive, once if that happens again and again."""
        if reason != self._reported:
            self._reported = reason
            self._log.event("checkpoint-not-collected", step=step, reason=reason)

    def _on_retention_event(self, event: RetentionEvent) -> None:
        log_retention_event(self._log, event, {})
