"""Writer handle: the process of this host that writes checkpoints, as its agent holds it.

    worker ── Staging ─▶ agent ── Staging, WritePart ─▶ writer ── part file ─▶ storage
                               ◀─ PartWritten ─────────

A worker stages a state in the arena; the writer reads it there, so no bytes pass through the agent.
The process starts when the first worker is about to stage. The thread of `agent.checkpoints` has it
write one part at a time, and waits. The agent's own thread hears of its exit and starts it again.

If it exits while it writes, or takes longer than the size of the part allows and is killed, the
thread asks its successor for the same part. After the second failure the checkpoint fails as it
does on a full disk.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from contextlib import suppress
from typing import Final

from holdfast.agent.run_context import RunContext
from holdfast.checkpoint.manifest import Header, PartFile
from holdfast.checkpoint.part_file import WrittenPart
from holdfast.checkpoint.retention import CLOSE_S
from holdfast.launch.fork_client import ForkClient
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.channel import Channel, pair
from holdfast.wire.checkpoint_service import transfer_timeout_s
from holdfast.wire.messages import (
    DeleteOldMessage,
    PartWrittenMessage,
    StagingMessage,
    WritePartMessage,
)
from holdfast.wire.worker_spec import WriterSpec

CLOSE_TIMEOUT_S: Final = CLOSE_S + 1
"""Time that the process may take to exit, after the work that it may still do."""
RESTART_INTERVAL_S: Final = 1.0
RESTART_TIMEOUT_S: Final = 10.0
ATTEMPTS: Final = 2
"""Number of times that a part is written if the process exits or hangs meanwhile."""
NO_RANK: Final = -1
"""The rank of a process that is no worker, for the fork server."""
_POLL_S: Final = 1.0


class WriterHandle:
    """The writer of this host.

    The agent starts it again if it exits. One thread at a time has it write.

    Args:
        forks: A fork server.
        run: The run.
        arena_fd: The host's shared memory.
        log: The run's log of events.

    Attributes:
        pid: Process id; 0 before there is one.
    """

    def __init__(self, forks: ForkClient, run: RunContext, arena_fd: int, log: EventLog) -> None:
        self._forks = forks
        self._run = run
        self._arena_fd = arena_fd
        self._log = log
        self._channel: Channel | None = None
        self._sending = threading.Lock()
        self._restarted = threading.Condition()
        self.pid = 0
        self._pidfd = -1
        self._is_lost = False
        self._started_at = -math.inf

    def begin(self, staging: StagingMessage) -> None:
        """Start the process, if that has not been done, and let it make sure that there is memory
        to stage checkpoints in.
        """
        if self._channel is None:
            self._start()
            with suppress(ConnectionError):  # without that, the first checkpoints are slower
                self._send(staging)

    def on_exited(self, pid: int, status: int) -> None:
        """Take note that a process has exited, this one or another."""
        if pid == self.pid:
            self._is_lost = True
            self._log.event("writer-exited", pid=pid, status=status, **self._run.where)

    def restart_if_lost(self, now: float) -> None:
        """Start it again if it has exited, at most once in RESTART_INTERVAL_S.

        Args:
            now: Monotonic seconds.
        """
        if self._is_lost and now > self._started_at + RESTART_INTERVAL_S:
            self._start()

    def write(self, draft: str, header: Header, offset: int) -> WrittenPart:
        """Write a staged state into a draft, durably; waits for that.

        Args:
            draft: The name of the draft.
            header: Describes the state.
            offset: Start of the state in the arena's file, bytes.

        Raises:
            OSError: The disk is full or unreachable, or the process has exited or hung twice.
        """
        entries = tuple((t.name, t.dtype, t.entry.stored_shape, t.offset) for t in header.tensors)
        request = WritePartMessage(
            draft=draft, offset=offset, size_bytes=header.size_bytes, entries=entries
        )
        for _ in range(ATTEMPTS):
            if (written := self._ask(request)) is not None:
                if written.error:
                    raise OSError(written.error)
                file = PartFile.model_validate(written.file)
                return WrittenPart(file=file, staged_digests=written.staged_digests)
        raise OSError(
            "the writer process has exited or hung twice; see writer.log in the run's logs, and "
            "whether the disk answers"
        )

    def delete_old(self) -> None:
        """Let it verify the newest checkpoints and delete older ones; returns at once.

        Not while workers are about to restore: what they reject must not vanish before.
        """
        if self._channel is not None:
            with suppress(ConnectionError):  # the next one that is started will
                self._send(DeleteOldMessage())

    def close(self) -> None:
        """Let it finish what it does, for a while, and exit."""
        if self._channel is None:
            return
        self._channel.close()
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(1000 * CLOSE_TIMEOUT_S)
        os.close(self._pidfd)

    def _ask(self, request: WritePartMessage) -> PartWrittenMessage | None:
        """Let the process write. If it exits, or takes too long and is killed, None once another
        one was started.
        """
        channel = self._channel
        pidfd = self._pidfd
        assert channel is not None, "a checkpoint is staged where no worker has said so"
        with suppress(ConnectionError):  # which the end of its messages says too
            self._send(request)
        written = _answer(channel, time.monotonic() + transfer_timeout_s(request.size_bytes))
        # A process that hangs is killed, so that no write of it comes late. The agent's own thread
        # starts the next one: see `restart_if_lost`.
        if written is None:
            with suppress(OSError):  # it has exited
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            with self._restarted:
                self._restarted.wait_for(lambda: self._channel is not channel, RESTART_TIMEOUT_S)
        return written

    def _start(self) -> None:
        near, far = pair()
        spec = WriterSpec(
            run_dir=str(self._run.directory),
            settings=self._run.job.checkpoint,
            retention=self._run.job.retention,
            where=dict(self._run.where),
        )
        path = self._run.directory / "logs" / "writer.log"
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fds = (self._arena_fd, far.fileno(), log)
            self.pid, pidfd = self._forks.fork(NO_RANK, spec.model_dump_json(), fds)
        finally:
            os.close(log)
            far.close()
        if self._channel is not None:  # of one that has exited
            os.close(self._pidfd)
        with self._restarted:
            self._channel = near
            self._pidfd = pidfd
            self._restarted.notify_all()
        self._is_lost = False
        self._started_at = time.monotonic()

    def _send(self, message: StagingMessage | WritePartMessage | DeleteOldMessage) -> None:
        """Raises: ConnectionError: The process has exited."""
        assert self._channel is not None
        with self._sending:
            self._channel.send(message)


def _answer(channel: Channel, deadline: float) -> PartWrittenMessage | None:
    """Answer of the process; None if it exits, or says nothing until `deadline`."""
    while not channel.at_end and time.monotonic() < deadline:
        for message in channel.poll(_POLL_S):
            assert isinstance(message, PartWrittenMessage)
            return message
    return None
