"""HostFiles: what hosts that have joined get of the run's directory, and what they add to it.

Each host keeps a run directory of its own. It gets the job and the code, and sends what is appended
to its logs, so that the coordinator's directory covers all ranks.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from holdfast.errors import ProtocolError
from holdfast.job import JOB_FILE
from holdfast.rundir import code_version, json_lines
from holdfast.rundir.json_lines import EventLog, StepFile
from holdfast.rundir.run_directory import ARCHIVE, EVENTS, METRICS, PROFILE, SYSTEM, run_id_of
from holdfast.rundir.system_file import SystemFile, samples_in
from holdfast.wire.rpc import MAX_SHIPPED_BYTES, JobMessage, ShipMessage, ShippedMessage

MAX_HOST_BYTES: Final = 256 << 20
"""The most that one host may add."""
_AGENT_LOG: Final = "logs/agent.log"
_WORKER_LOG: Final = re.compile(r"logs/rank-\d{1,9}\.log", re.ASCII)
_TAIL_BYTES: Final = 8 * MAX_SHIPPED_BYTES
"""Bytes at the end of the log of events that are searched for what a coordinator before this one
has appended and not answered."""


class HostFiles:
    """The files of one run, for other hosts.

    Args:
        run_dir: The run's directory.
        log: The run's log of events.
        collects: True if agents of other hosts may have steps that none of this host writes here.
        moves: True if another host can take over the coordinator.
    """

    def __init__(
        self, run_dir: Path, log: EventLog, *, collects: bool, moves: bool = False
    ) -> None:
        self._run_dir = run_dir
        self._moves = moves
        self._log = log
        self._metrics = StepFile(run_dir / METRICS) if collects else None
        self._system = SystemFile(run_dir)
        self._ends: dict[tuple[str, str], int] = {}  # of what was appended, by host and log
        self._sizes: dict[str, int] = {}  # bytes, by host
        self._sending: set[str] = set()  # hosts that have more to send, maybe
        self._all_sent = asyncio.Event()

    @cached_property
    def job(self) -> JobMessage:
        """Job of the hosts.

        Raises:
            OSError: It cannot be read.
        """
        code = (self._run_dir / ARCHIVE).read_bytes()
        profile = self._run_dir / PROFILE
        return JobMessage(
            run=self._run_dir.resolve().name,
            run_id=run_id_of(self._run_dir),
            job=(self._run_dir / JOB_FILE).read_text(encoding="utf-8"),
            code=base64.b64encode(code).decode(),
            code_sha256=hashlib.sha256(code).hexdigest(),
            collects=self._metrics is not None,
            moves=self._moves,
            profile=profile.read_text(encoding="utf-8") if profile.exists() else "",
            code_version=code_version.kept(self._run_dir),
        )

    def receive(self, host: str, message: ShipMessage) -> ShippedMessage:
        """Append what a host has logged, once, however often it is sent.

        Raises:
            ProtocolError: It is no log, or no part of one.
        """
        if message.file == METRICS and self._metrics is not None:
            self._metrics.add(_content(message))
            return ShippedMessage()
        if message.file == SYSTEM:
            self._system.add(samples_in(_content(message), host))
            return ShippedMessage()
        target = self._target(host, message.file)
        content = _content(message)
        key = host, message.file
        known = self._ends.get(key)
        # An answer may have been lost, and the host sends the same again: only what comes after
        # the known end is new.
        fresh = content[max(0, (known or message.offset) - message.offset) :]
        is_event = message.file == EVENTS
        if is_event:
            fresh = _shipped_events(fresh)
        # A coordinator before this one may have appended the first part, which no end tells here.
        # Events that are twice in the log would be counted twice.
        if fresh and not (known is None and is_event and _is_at_end(target, fresh)):
            self._append(host, target, fresh)
        self._ends[key] = max(known or 0, message.offset + len(content))
        (self._sending.discard if message.is_last else self._sending.add)(host)
        if not self._sending:
            self._all_sent.set()
        return ShippedMessage()

    def on_disconnected(self, host: str) -> None:
        """Note that a host may be lost: nothing more may come from it."""
        self._sending.discard(host)

    async def await_last(self, timeout_s: float) -> None:
        """Wait until all hosts have sent all that they have, `timeout_s` at most."""
        self._all_sent.clear()
        if self._sending:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_sent.wait(), timeout_s)

    def _target(self, host: str, file: str) -> Path:
        """Path of a log in the run directory.

        Raises:
            ProtocolError: It is none that is sent.
        """
        if file == _AGENT_LOG:  # the names of hosts are ours
            return self._run_dir / "logs" / f"agent-{host}.log"
        if file == EVENTS or _WORKER_LOG.fullmatch(file):
            return self._run_dir / file
        raise ProtocolError("a file that is no log of a run")

    def _append(self, host: str, target: Path, content: bytes) -> None:
        size_bytes = self._sizes.get(host, 0)
        if size_bytes > MAX_HOST_BYTES:
            return
        self._sizes[host] = size_bytes + len(content)
        if self._sizes[host] > MAX_HOST_BYTES:
            self._log.event("host-log-full", host=host)
            return
        with suppress(OSError):  # the disk is full: no run ends because of a log
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)


def _content(message: ShipMessage) -> bytes:
    try:
        content = base64.b64decode(message.content, validate=True)
    except binascii.Error:
        raise ProtocolError("a part of a log that is not base64") from None
    if len(content) > MAX_SHIPPED_BYTES:
        raise ProtocolError("a part of a log that is too long")
    return content


def _shipped_events(content: bytes) -> bytes:
    """The lines that are events, each with a mark: its directories are those of another host."""
    lines = (line.rstrip() for line in content.splitlines() if _is_event(line))
    return b"".join(line[:-1] + b', "shipped": true}\n' for line in lines)


def _is_event(line: bytes) -> bool:
    return any(
        isinstance(value.get("event"), str) and isinstance(value.get("time_unix_s"), int | float)
        for value in json_lines.objects_in(line)
    )


def _is_at_end(path: Path, content: bytes) -> bool:
    """True if the end of a file has `content` in it."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return content in file.read()
    return False
