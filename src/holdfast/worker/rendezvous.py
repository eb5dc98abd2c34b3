"""Rendezvous: the store at which the workers of one host meet for PyTorch's collectives.

Rank 0 keeps it, a fresh one for every generation, and tells the others its port.
"""

from __future__ import annotations

import socket
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from holdfast.errors import JobError
from holdfast.transport.shared_memory import Meeting, SharedMemoryGroup

HOST: Final = "127.0.0.1"
"""Where it listens: for this host alone."""


def meet(group: SharedMemoryGroup, port: int) -> TCPStore:
    """A store for this worker to use.

    Args:
        group: The workers.
        port: Where rank 0 is to listen; 0 takes a free port.

    Raises:
        JobError: The port is taken.
    """
    if group.rank == 0:
        return serve(group, port)
    return TCPStore(HOST, found(group), is_master=False)


def serve(group: SharedMemoryGroup, port: int) -> TCPStore:
    """Keep the store, as rank 0; see `meet`."""
    with _listener(port) as listener:
        taken = listener.getsockname()[1]
        store = TCPStore(
            HOST, taken, is_master=True, master_listen_fd=listener.detach(), use_libuv=True
        )
    group.barrier(Meeting.ATTACH, 0, taken)
    return store


def found(group: SharedMemoryGroup) -> int:
    """The port at which rank 0 keeps the store."""
    return group.barrier(Meeting.ATTACH, 0)[0]


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise JobError(
            f"port {port} of {HOST}: {error.strerror}; set port=0 to take a free one"
        ) from None
    return listener
