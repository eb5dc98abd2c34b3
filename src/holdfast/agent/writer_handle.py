"""Writer handle: the process of this host that writes checkpoints, as its agent holds it."""

from __future__ import annotations

import os
from typing import Final

from holdfast.agent.run_context import RunContext
from holdfast.checkpoint.manifest import Header, PartFile
from holdfast.checkpoint.writer import WrittenPart
from holdfast.launch.fork_client import ForkClient
from holdfast.wire.channel import Channel, pair
from holdfast.wire.messages import PartWrittenMessage, StagingMessage, WritePartMessage
from holdfast.wire.worker_spec import WriterSpec

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

    Attributes:
        pid: Of the process; 0 before there is one.
    """

    def __init__(self, forks: ForkClient, run: RunContext, arena_fd: int) -> None:
        self._forks, self._run, self._arena_fd = forks, run, arena_fd
        self._channel: Channel | None = None
        self.pid = 0

    def begin(self, staging: StagingMessage) -> None:
        """Start the process, if that has not been done, and let it make sure that there is memory
        to stage checkpoints in.
        """
        if self._channel is None:
            self._start()
            self._send(staging)

    def restart_if(self, pid: int) -> None:
        """Start it again if it is the process `pid`, which has exited."""
        if pid == self.pid:
            self._start()

    def write(self, draft: str, header: Header, offset: int) -> WrittenPart:
        """Write a staged state into a draft, durably; waits for that.

        Args:
            draft: The name of the draft.
            header: Describes the state.
            offset: Where the state begins in the arena's file, bytes.

        Raises:
            OSError: The disk is full or unreachable, or the process has exited.
        """
        channel = self._channel
        assert channel is not None, "a checkpoint is staged where no worker has said so"
        entries = tuple((t.name, t.dtype, t.shape, t.offset) for t in header.tensors)
        request = WritePartMessage(
            draft=draft, offset=offset, size_bytes=header.size_bytes, entries=entries
        )
        self._send(request)
        while not channel.at_end:
            for message in channel.poll(_POLL_S):
                assert isinstance(message, PartWrittenMessage)
                if message.error:
                    raise OSError(message.error)
                file = PartFile.model_validate(message.file)
                return WrittenPart(file=file, staged_digests=message.staged_digests)
        raise OSError("the writer process has exited; see writer.log in the run's logs")

    def close(self) -> None:
        """Let it exit."""
        if self._channel is not None:
            self._channel.close()

    def _start(self) -> None:
        near, far = pair()
        settings = self._run.job.checkpoint
        spec = WriterSpec(run_dir=str(self._run.directory), settings=settings).model_dump_json()
        path = self._run.directory / "logs" / "writer.log"
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fds = (self._arena_fd, far.fileno(), log)
            self.pid, pidfd = self._forks.fork(NO_RANK, spec, fds)
        finally:
            os.close(log)
            far.close()
        os.close(pidfd)  # its exit is known from the fork server, and its end with the agent's
        self._channel = near

    def _send(self, message: StagingMessage | WritePartMessage) -> None:
        assert self._channel is not None
        try:
            self._channel.send(message)
        except ConnectionError as error:
            raise OSError(f"the writer process has exited: {error}") from None
