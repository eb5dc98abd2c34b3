"""Rendezvous: the store through which workers connect for PyTorch's collectives.

Rank 0 serves a new one for every generation, and passes its port to the others.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.collectives.group import Group
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag

HOST: Final = "127.0.0.1"
"""Where it listens if all workers are on this host: no other can connect."""
PORT_RELEASE_TIMEOUT_S: Final = 10.0
"""How long the port of the previous store may stay in use."""


def address_of_store(group: Group) -> str:
    """Where rank 0 serves the store, for the workers of every host."""
    network = group.network
    if network is None:
        return HOST
    return host_of(network.hosts.addresses[group.members[0]])


def connect_store(group: Group, port: int) -> TCPStore:
    """The store for this worker.

    Args:
        group: The workers.
        port: Where rank 0 listens; 0 takes a free port.

    Raises:
        JobError: The port is in use.
    """
    if group.member_index == 0:
        return keep_store(group, port)
    return TCPStore(address_of_store(group), await_store_port(group), is_master=False)


def keep_store(group: Group, port: int) -> TCPStore:
    """Serve the store, as rank 0; see `connect_store`."""
    address = address_of_store(group)
    with _listener(group, address, port) as listener:
        taken = listener.getsockname()[1]
        store = TCPStore(
            address, taken, is_master=True, master_listen_fd=listener.detach(), use_libuv=True
        )
    group.barrier(WorkerTag.ATTACH, 0, taken)
    return store


def await_store_port(group: Group) -> int:
    """The port at which rank 0 serves the store, once it does."""
    return group.barrier(WorkerTag.ATTACH, 0)[0]


def host_of(address: str) -> str:
    """The host of `host:port`."""
    return address.rpartition(":")[0]


def _listener(group: Group, address: str, port: int) -> socket.socket:
    """A listening socket. Children of the previous worker may still hold the port."""
    deadline = time.monotonic() + (PORT_RELEASE_TIMEOUT_S if group.generation > 1 else 0)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        try:
            return socket.create_server((address, port), family=family)  # with SO_REUSEADDR
        except OSError as error:
            group.check_abort()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise JobError(
                    f"port {port} of {address}: {os.strerror(error.errno or 0)}; set port=0 to "
                    "take a free one"
                ) from None
        time.sleep(ABORT_POLL_S)
