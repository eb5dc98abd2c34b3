"""Line: the connection between the first host and another one, over TLS."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Final, Self, TypeVar

from pydantic import ValidationError

from holdfast.doctor.peers.messages import MESSAGES, AnyMessage
from holdfast.errors import HoldfastError, ProtocolError
from holdfast.wire.messages import Message
from holdfast.wire.tls import Credentials, Identity, Role

MAX_LINE_BYTES: Final = 1 << 20
CONNECT_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.2

M = TypeVar("M", bound=Message)


class Line:
    """A connection of one message a line.

    Args:
        connection: Encrypted; closed with this object.
        who: The other end, for errors.
    """

    def __init__(self, connection: ssl.SSLSocket, who: str) -> None:
        self._connection, self.who = connection, who
        self._reader = connection.makefile("rb")

    @classmethod
    def connect(cls, address: str, credentials: Credentials) -> Self:
        """Connect to the first host.

        Raises:
            HoldfastError: It cannot be reached, or is not that of this check.
        """
        host, _, port = address.rpartition(":")
        until, context = time.monotonic() + CONNECT_TIMEOUT_S, credentials.client_context()
        while True:
            try:
                plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S)
                connection = context.wrap_socket(plain)
                break
            except OSError as error:
                if isinstance(error, ssl.SSLCertVerificationError) or time.monotonic() > until:
                    raise HoldfastError(
                        f"no connection to {address}, where agents connect: {error}; open that "
                        "port too, and see whether the clocks of both hosts are right"
                    ) from None
                time.sleep(RETRY_S)
        identity = Identity.of_peer(connection.getpeercert())
        if identity is None or identity.role != Role.COORDINATOR:
            connection.close()
            raise ProtocolError(f"{address} is not the first host of this check")
        return cls(connection, f"the first host at {address}")

    def send(self, message: AnyMessage) -> None:
        """Send a message.

        Raises:
            HoldfastError: The connection has ended.
        """
        try:
            self._connection.sendall(message.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, timeout_s: float) -> AnyMessage:
        """The next message, of any kind.

        Raises:
            HoldfastError: There is none in time, or the connection has ended.
            ProtocolError: It makes no sense.
        """
        try:
            self._connection.settimeout(timeout_s)  # not if it was closed here: the host had ended
            text = self._reader.readline(MAX_LINE_BYTES)
        except TimeoutError:
            raise HoldfastError(f"{self.who} did not answer within {timeout_s:.0f} s") from None
        except OSError as error:
            raise self._lost(error.strerror or error) from None
        if not text:
            raise self._lost("it has closed it")
        try:
            return MESSAGES.validate_json(text)
        except ValidationError:
            raise ProtocolError(f"{self.who} sent no valid message; {_SAME}") from None

    def expect(self, kind: type[M], timeout_s: float) -> M:
        """The next message, which is of a kind; see `receive`."""
        message = self.receive(timeout_s)
        if not isinstance(message, kind):
            raise ProtocolError(f"{self.who} sent a message {message.kind}; {_SAME}")
        return message

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed the connection."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """End the connection."""
        self._reader.close()
        self._connection.close()

    def _lost(self, why: object) -> HoldfastError:
        return HoldfastError(f"the connection to {self.who} has ended: {why}")


_SAME: Final = "use the same version of holdfast on all hosts"
