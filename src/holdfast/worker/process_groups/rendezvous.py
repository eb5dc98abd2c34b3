"""Rendezvous: how the workers of a generation find each other for PyTorch's collectives.

Rank 0 serves a new store for every generation, and passes its port to the others. On several hosts,
process groups listen on the interface of their host if the network is trusted; else on a loopback
address of their host, to which the agents of the others carry connections; see `agent.tunnel`.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import psutil
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.errors import JobError
from holdfast.strict import Strict
from holdfast.wire.messages import LoopbackAddress, OpenTunnelMessage, Route
from holdfast.worker.agent_link import AgentLink

HOST: Final = "127.0.0.1"
"""Address at which rank 0 listens if all workers are on its host: no other can connect."""
PORT_RELEASE_TIMEOUT_S: Final = 10.0
"""Time that the port of the previous store may stay in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Meeting point of the workers of a generation.

    Attributes:
        address, port: Address of the store, for this worker.
        store: The store, on rank 0: it lasts as long as it is held there.
    """

    address: str
    port: int
    store: TCPStore | None

    def connect(self) -> TCPStore:
        """The store for this worker."""
        return self.store or TCPStore(self.address, self.port, is_master=False)


class _Own(Strict):
    """Message of a worker to those of other hosts.

    Attributes:
        tunnel: The address of its agent's tunnel.
        ports: Ports on which it listens.
    """

    tunnel: str
    ports: tuple[int, ...]


def meet(group: Group, agent: AgentLink, trust: Literal["tls", "trusted"], port: int) -> Rendezvous:
    """Serve the store, as rank 0, or learn where it is.

    Args:
        group: The members of the generation.
        agent: Opens tunnels to other hosts.
        trust: The job's `network`; with `tls`, connections to other hosts go through tunnels.
        port: Port of the store; 0 chooses a free one.

    Raises:
        JobError: The port is in use.
        OSError: Connections to another host cannot be carried.
    """
    network = group.network
    ports = list[int]()
    if network is None:
        address = HOST
    elif trust == "tls":
        address = loopback_of(network.hosts.host_of(group.members[0]))
        ports.append(bind_gloo(loopback_of(network.host)))
    else:
        address = host_of(network.hosts.addresses[group.members[0]])
    store = _serve(group, address, port) if group.member_index == 0 else None
    if network is not None and ports:
        _open_tunnel(network, group, agent, [*ports, *([store.port] if store else [])])
    # The store is served, and tunnels are open: a worker that passes this barrier can connect.
    served_at = group.barrier(WorkerTag.ATTACH, 0, store.port if store else 0)[0]
    return Rendezvous(address=address, port=served_at, store=store)


def host_of(address: str) -> str:
    """The host of `host:port`."""
    return address.rpartition(":")[0]


def _serve(group: Group, address: str, port: int) -> TCPStore:
    with _listener(group, address, port) as listener:
        taken = listener.getsockname()[1]
        return TCPStore(
            address, taken, is_master=True, master_listen_fd=listener.detach(), use_libuv=True
        )


def _open_tunnel(network: Network, group: Group, agent: AgentLink, ports: list[int]) -> None:
    """Have the agents of all hosts carry connections to the ports on which workers listen."""
    own = _Own(tunnel=agent.tunnel, ports=tuple(ports))
    gathered = group.gather(WorkerTag.ATTACH, 0, own.model_dump_json().encode())
    places: dict[int, list[Route]] = {}
    for rank, payload in zip(group.members, gathered, strict=True):
        host = network.hosts.host_of(rank)
        theirs = _Own.model_validate_json(payload)
        places.setdefault(host, []).extend(
            Route(to=LoopbackAddress(address=loopback_of(host), port=port), tunnel=theirs.tunnel)
            for port in theirs.ports
        )
    if group.rank == group.local[0]:
        agent.open_tunnel(
            OpenTunnelMessage(
                generation=group.generation,
                exposed=tuple(route.to for route in places[network.host]),
                routes=tuple(route for host in network.others for route in places[host]),
            )
        )


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


def loopback_of(host: int) -> str:
    """The address for the process groups of the host at this position in its generation. It is
    another one for each host, so an address and a port name the same worker on all of them.
    """
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
