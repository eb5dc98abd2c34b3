"""Probe: whether a host accepts connections. Its kernel does, even where its processes starve."""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack
from typing import Final

ATTEMPTS: Final = 3
ATTEMPT_S: Final = 0.1
"""A packet may be lost; the kernel itself would send the first of a connection again after 1 s."""


def accepts(address: str) -> bool:
    """True if a connection can be made.

    Args:
        address: Address, as `address:port`.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as connections:
        answered = select.poll()
        made = {}
        for _ in range(ATTEMPTS):
            connection = connections.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            error = connection.connect_ex((host, int(port)))
            # Known at once: the host is this one, or cannot be reached from here.
            if error != errno.EINPROGRESS:
                return error == 0
            made[connection.fileno()] = connection
            answered.register(connection, select.POLLOUT)
            # An earlier attempt may be answered during a later one. A refusal is no acceptance.
            for fd, _events in answered.poll(1000 * ATTEMPT_S):
                return made[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    return False
