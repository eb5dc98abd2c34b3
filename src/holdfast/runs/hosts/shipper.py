"""Shipper: sends what is appended to the logs of this host to the coordinator of a run.

A thread reads the logs, a piece at a time, and sends the next once the last was answered. So no
worker and no agent waits for it, and what a host sends is bounded. If the coordinator is away, it
waits: the logs are on this host's disk. If the coordinator moves to another host, that one gets
what follows; while it is on this host, the logs are the run's record already, and nothing is sent.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Self

import grpc

from holdfast.rundir.follow import ByteTail, Cursor, JsonTail, StepTail, end_of
from holdfast.rundir.run_directory import EVENTS, METRICS, SYSTEM
from holdfast.wire.coordinator_channel import CoordinatorChannel, answer_of
from holdfast.wire.rpc import MAX_SHIPPED_BYTES, Service, ShipMessage
from holdfast.wire.tls import Credentials

INTERVAL_S: Final = 0.2
"""Interval at which the logs are looked at."""
FLUSH_TIMEOUT_S: Final = 5.0
"""Most time at the end for sending what is left."""
MAX_SAMPLES: Final = 1000
"""Most samples of the host that are kept while the coordinator is away: the newest."""
_LOGS: Final = re.compile(r"agent\.log|rank-\d+\.log")

Cursors = dict[str, Cursor]
"""The end of what was sent of each log."""


def ends_of(run_dir: Path) -> Cursors:
    """The ends of the logs in a run directory: only what comes after them is sent."""
    return {file: end_of(path) for file, path in _logs(run_dir)}


class Shipper:
    """Sends from `__enter__` to `__exit__`, which sends what is left.

    Args:
        run_dir: The run's directory on this host.
        address: Returns the present address of the coordinator's gRPC service; empty while this
            host coordinates the run.
        credentials: The agent's.
        cursors: Moved as logs are sent.
        metrics: Lines that are appended to the metrics, if the coordinator collects them.
    """

    def __init__(
        self,
        run_dir: Path,
        address: Callable[[], str],
        credentials: Credentials | None,
        cursors: Cursors,
        metrics: StepTail | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._address = address
        self._credentials = credentials
        self._cursors = cursors
        self._metrics = metrics
        self._steps = deque[bytes]()
        self._system = JsonTail(run_dir / SYSTEM, end_of(run_dir / SYSTEM))
        self._samples = deque[bytes](maxlen=MAX_SAMPLES)
        self._target = ""  # the address that is sent to
        self._is_announced = False  # there
        self._closing = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._work, name="shipper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline = time.monotonic() + FLUSH_TIMEOUT_S
        self._closing.set()
        self._thread.join(FLUSH_TIMEOUT_S + 1)

    def _work(self) -> None:
        with CoordinatorChannel(lambda: self._target, self._credentials) as channel:
            while not self._closing.is_set():
                self._follow(channel, is_end=False)
                self._closing.wait(INTERVAL_S)
            while not self._follow(channel, is_end=True) and time.monotonic() < self._deadline:
                time.sleep(INTERVAL_S)
            if self._target:
                self._announce(channel, is_last=True)

    def _follow(self, channel: CoordinatorChannel, *, is_end: bool) -> bool:
        """Send what is new to the coordinator where it is now; returns whether all was sent."""
        if (address := self._address()) != self._target:
            self._target = address
            self._is_announced = False
        with suppress(OSError):
            self._read_lines()
        if not address:
            self._skip_new()
            return True
        # A coordinator waits for the end of what has begun.
        self._is_announced = self._is_announced or self._announce(channel)
        return self._is_announced and self._send_new(channel, is_end=is_end)

    def _announce(self, channel: CoordinatorChannel, *, is_last: bool = False) -> bool:
        """Tell the coordinator that logs are sent from now on, or that all were; returns True if it
        knows.
        """
        end = self._cursors.get(EVENTS, Cursor()).position
        return self._send(channel, EVENTS, b"", end, is_last=is_last)

    def _skip_new(self) -> None:
        """Pass over what is new: it is in the record of the run, which this host keeps now."""
        self._steps.clear()
        self._samples.clear()
        with suppress(OSError):
            self._cursors.update(ends_of(self._run_dir))

    def _read_lines(self) -> None:
        """Queue the new steps and samples.

        Raises:
            OSError: A file cannot be read.
        """
        if self._metrics is not None:
            self._steps += (json.dumps(line).encode() + b"\n" for line in self._metrics())
        self._samples += (json.dumps(line).encode() + b"\n" for line in self._system())

    def _send_new(self, channel: CoordinatorChannel, *, is_end: bool) -> bool:
        """Send what is new; returns whether all of it was sent."""
        if not self._send_lines(channel, METRICS, self._steps):
            return False
        if not self._send_lines(channel, SYSTEM, self._samples):
            return False
        while pieces := list(self._pieces(is_end=is_end)):
            for file, piece, following in pieces:  # of each log in turn
                offset = following.position - len(piece)
                if not self._send(channel, file, piece, offset):
                    return False
                # It moves only once the piece has arrived: an agent after this one continues here.
                self._cursors[file] = following
        return True

    def _send_lines(self, channel: CoordinatorChannel, file: str, lines: deque[bytes]) -> bool:
        """Send lines, and remove them as they have arrived; returns whether all have."""
        while lines:
            count = 0
            size = 0
            while count < len(lines) and size + len(lines[count]) <= MAX_SHIPPED_BYTES:
                size += len(lines[count])
                count += 1
            piece = b"".join(islice(lines, count))
            if piece and not self._send(channel, file, piece):
                return False
            for _ in range(count or 1):  # one that is too long is lost
                lines.popleft()
        return True

    def _pieces(self, *, is_end: bool) -> Iterator[tuple[str, bytes, Cursor]]:
        """The next piece of each log that has one, and the cursor after it; pieces are whole lines,
        except for the last one at the end.
        """
        for file, path in _logs(self._run_dir):
            tail = ByteTail(path, self._cursors.get(file, Cursor()))
            with suppress(OSError):
                if piece := tail.piece(MAX_SHIPPED_BYTES, is_last=is_end):
                    yield file, piece, tail.cursor

    def _send(
        self,
        channel: CoordinatorChannel,
        file: str,
        piece: bytes,
        offset: int = 0,
        *,
        is_last: bool = False,
    ) -> bool:
        """Send a piece of a log; returns True if it has arrived.

        Args:
            channel: To the coordinator.
            file: Name of the log.
            piece: Some of its lines.
            offset: Place of the piece in the log, bytes; without a meaning for metrics and samples.
            is_last: True if nothing more comes.
        """
        if self._has_moved():  # the one before may still answer, and what it gets is lost
            return False
        message = ShipMessage(
            file=file, offset=offset, content=base64.b64encode(piece).decode(), is_last=is_last
        )
        call = Service(channel.get()).ship.future(message, timeout=FLUSH_TIMEOUT_S)
        try:
            answer_of(call, self._has_moved)
        except (grpc.RpcError, grpc.FutureCancelledError):
            return False
        return True

    def _has_moved(self) -> bool:
        return self._address() != self._target


def _logs(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The logs that are sent, by their names in the run's directory."""
    if (run_dir / EVENTS).exists():
        yield EVENTS, run_dir / EVENTS
    for path in sorted((run_dir / "logs").glob("*.log")):
        if _LOGS.fullmatch(path.name):
            yield f"logs/{path.name}", path
