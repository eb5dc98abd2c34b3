"""Loopback: has gloo listen on an address of this host alone, for connections that are tunnelled.

`agent.tunnel` says why. Every host has an address of its own, so an address and a port name the
same worker on all of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psutil
from torch.distributed import distributed_c10d

from holdfast.errors import JobError


def loopback_of(host: int) -> str:
    """The address for the process groups of the host at this position in its generation."""
    return f"127.77.{host}.1"


def bind_gloo(address: str) -> int:
    """Have every process group of gloo in this process listen on `address`; returns the port.

    NCCL cannot be bound like this: from now on, process groups of NCCL are refused.
    """
    plain: Any = distributed_c10d.ProcessGroupGloo
    device = plain.create_device(hostname=address)

    class BoundGloo(plain):  # type: ignore[misc]
        """Process group of gloo on one device, whatever its creator asks for."""

        def __init__(
            self,
            store: Any,
            rank: int,
            size: int,
            timeout: timedelta = distributed_c10d.default_pg_timeout,
        ) -> None:
            options = plain._Options()
            options._devices = [device]
            options._threads = 2
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    names: Any = distributed_c10d
    names.ProcessGroupGloo = BoundGloo
    if hasattr(names, "ProcessGroupNCCL"):
        names.ProcessGroupNCCL = _RefusedNccl
    return _listening_port(address)


class _Refused:
    def __init__(self, *_: object, **__: object) -> None:
        raise JobError(
            "NCCL between hosts is not encrypted; set network=trusted (--network trusted), on a "
            "network that no one else can read or write to, or use gloo"
        )


class _RefusedNccl(_Refused):
    Options = _Refused


def _listening_port(address: str) -> int:
    """The port at `address` on which this process listens."""
    for each in psutil.Process().net_connections("tcp4"):
        if each.status == psutil.CONN_LISTEN and each.laddr.ip == address:
            return int(each.laddr.port)
    raise AssertionError(f"gloo does not listen on {address}")
