"""Channel: messages, with file descriptors, over a Unix socket between two processes."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from holdfast.errors import ProtocolError
from holdfast.wire.messages import ADAPTER, AnyMessage

LIMIT: Final = 64 << 20
"""The longest message, bytes."""

_READ: Final = 1 << 16
_MAX_FDS: Final = 8


class Channel:
    """One end of a connection; one JSON object per line, in both directions.

    `take_fds` returns the descriptors that came with messages, in the order of arrival.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._fds: list[int] = []
        self.at_end = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: AnyMessage, fds: Sequence[int] = ()) -> None:
        """Send one message, and copies of `fds` with it.

        Raises:
            ConnectionError: The other end is gone.
        """
        # Descriptors go with the first bytes of their message; the rest of it may follow.
        data = memoryview(message.model_dump_json().encode() + b"\n")
        sent = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
        self._socket.sendall(data[sent:])

    def poll(self, timeout_s: float) -> list[AnyMessage]:
        """Read once, waiting `timeout_s` at most; returns every message that is complete.

        At the end of the stream `at_end` is set and nothing comes.

        Raises:
            ProtocolError: What came is not a message.
        """
        self._socket.settimeout(timeout_s)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _READ, _MAX_FDS)
        except (TimeoutError, BlockingIOError):
            return []
        except ConnectionResetError:
            data = b""
            fds = []
        finally:
            self._socket.settimeout(None)
        self._fds += fds
        self.at_end = not data
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        # A line that does not end would fill the memory.
        if len(rest) > LIMIT:
            raise ProtocolError(
                f"a message of more than {LIMIT} bytes; the peer is not a holdfast process"
            )
        self._buffer = rest
        return [self._parse(bytes(line)) for line in lines]

    def drain(self) -> list[AnyMessage]:
        """All messages sent so far, also by a peer that has exited while a child holds its end.

        Raises:
            ProtocolError: What came is not a message.
        """
        messages: list[AnyMessage] = []
        readable = select.poll()
        readable.register(self, select.POLLIN)
        while not self.at_end and readable.poll(0):
            messages += self.poll(0)
        return messages

    def take_fds(self, count: int) -> list[int]:
        """The next `count` descriptors that came.

        Raises:
            ProtocolError: Fewer came.
        """
        if len(self._fds) < count:
            raise ProtocolError(f"expected {count} descriptors with a message")
        taken = self._fds[:count]
        self._fds = self._fds[count:]
        return taken

    def close(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self._socket.close()

    @staticmethod
    def _parse(line: bytes) -> AnyMessage:
        try:
            return ADAPTER.validate_json(line)
        except ValidationError as error:
            raise ProtocolError(f"invalid message: {error}") from None


def pair() -> tuple[Channel, Channel]:
    """Two connected channels, for a process and its child."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(near), Channel(far)
