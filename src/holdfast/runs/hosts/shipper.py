"""Shipper: sends what is appended to the logs of this host to the coordinator of a run.

A thread reads the logs, a piece at a time, and sends the next once the last was answered. So no
worker and no agent waits for it, and what a host sends is bounded. If the coordinator is away, it
waits: the logs are on this host's disk.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Self

import grpc

from holdfast.rundir.follow import ByteTail, Cursor, JsonTail, StepTail, end_of
from holdfast.rundir.run_directory import EVENTS, METRICS, SYSTEM
from holdfast.wire.rpc import MAX_SHIPPED_BYTES, Service, ShipMessage, open_channel
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
        address: Address of the coordinator's gRPC service.
        credentials: The agent's.
        cursors: Moved as logs are sent.
        metrics: Lines that are appended to the metrics, if the coordinator collects them.
    """

    def __init__(
        self,
        run_dir: Path,
        address: str,
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
        with open_channel(self._address, self._credentials) as channel:
            service = Service(channel)
            self._announce(service)  # the coordinator waits for the end of what has begun
            while not self._closing.is_set():
                self._send_new(service, is_end=False)
                self._closing.wait(INTERVAL_S)
            while not self._send_new(service, is_end=True) and time.monotonic() < self._deadline:
                time.sleep(INTERVAL_S)
            self._announce(service, is_last=True)

    def _announce(self, service: Service, *, is_last: bool = False) -> None:
        """Tell the coordinator that logs are sent from now on, or that all were."""
        end = self._cursors.get(EVENTS, Cursor()).position
        self._send(service, EVENTS, b"", end, is_last=is_last)

    def _send_new(self, service: Service, *, is_end: bool) -> bool:
        """Send what is new; returns whether all of it was sent."""
        if not (self._send_steps(service) and self._send_samples(service)):
            return False
        while pieces := list(self._pieces(is_end=is_end)):
            for file, piece, following in pieces:  # of each log in turn
                offset = following.position - len(piece)
                if not self._send(service, file, piece, offset):
                    return False
                self._cursors[file] = following
        return True

    def _send_steps(self, service: Service) -> bool:
        """Send the steps that were committed; returns whether all were sent."""
        if self._metrics is None:
            return True
        with suppress(OSError):
            self._steps += (json.dumps(line).encode() + b"\n" for line in self._metrics())
        return self._send_lines(service, METRICS, self._steps)

    def _send_samples(self, service: Service) -> bool:
        """Send what this host uses; returns whether all was sent."""
        with suppress(OSError):
            self._samples += (json.dumps(line).encode() + b"\n" for line in self._system())
        return self._send_lines(service, SYSTEM, self._samples)

    def _send_lines(self, service: Service, file: str, lines: deque[bytes]) -> bool:
        """Send lines, and remove them as they have arrived; returns whether all have."""
        while lines:
            count = 0
            size = 0
            while count < len(lines) and size + len(lines[count]) <= MAX_SHIPPED_BYTES:
                size += len(lines[count])
                count += 1
            piece = b"".join(islice(lines, count))
            if piece and not self._send(service, file, piece):
                return False
            for _ in range(count or 1):  # one that is too long is lost
                lines.popleft()
        return True

    def _pieces(self, *, is_end: bool) -> Iterator[tuple[str, bytes, Cursor]]:
        """The next piece of each log that has one, whole lines but for the last one at the end, and
        the cursor after it.
        """
        for file, path in _logs(self._run_dir):
            tail = ByteTail(path, self._cursors.get(file, Cursor()))
            with suppress(OSError):
                if piece := tail.piece(MAX_SHIPPED_BYTES, is_last=is_end):
                    yield file, piece, tail.cursor

    def _send(
        self, service: Service, file: str, piece: bytes, offset: int = 0, *, is_last: bool = False
    ) -> bool:
        """Send a piece of a log; returns True if it has arrived.

        Args:
            service: The coordinator's.
            file: Name of the log.
            piece: Some of its lines.
            offset: Place of the piece in the log, bytes; without a meaning for metrics and samples.
            is_last: True if nothing more comes.
        """
        message = ShipMessage(
            file=file, offset=offset, content=base64.b64encode(piece).decode(), is_last=is_last
        )
        try:
            service.ship(message, timeout=FLUSH_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return True


def _logs(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The logs that are sent, by their names in the run's directory."""
    if (run_dir / EVENTS).exists():
        yield EVENTS, run_dir / EVENTS
    for path in sorted((run_dir / "logs").glob("*.log")):
        if _LOGS.fullmatch(path.name):
            yield f"logs/{path.name}", path
