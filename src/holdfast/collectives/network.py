"""Network: the connections of one worker to the other hosts of its generation."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol, Self

from holdfast.collectives.connections import Listener, Peers
from holdfast.collectives.tcp import Buffers, Deadline, Place, StallReport, transfer
from holdfast.core.step.plan import lanes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHosts:
    """The hosts of a generation.

    Attributes:
        ranks: The ranks of each host, in the order of hosts.
        addresses: Address at which the worker of each rank accepts connections.
        key: Known to the members only.
    """

    ranks: tuple[tuple[int, ...], ...]
    addresses: Mapping[int, str]
    key: bytes

    @property
    def num_lanes(self) -> int:
        """Workers of the host that has most."""
        return max(map(len, self.ranks))

    def host_of(self, rank: int) -> int:
        """The position of the host of a rank."""
        return next(host for host, ranks in enumerate(self.ranks) if rank in ranks)

    def lanes(self, rank: int) -> range:
        """The lanes that a worker serves."""
        own = self.ranks[self.host_of(rank)]
        return lanes_of(own.index(rank), len(own), self.num_lanes)


class PeerReport(Protocol):
    """Takes note of a worker that does not send what is awaited."""

    def __call__(self, peer: int, *, is_broken: bool) -> None:
        """Report the worker of a rank, and whether the connection to it has broken."""


def ignore(peer: int, *, is_broken: bool) -> None:
    """A `PeerReport` where no agent decides what follows."""


class Network:
    """The connections of one worker.

    Args:
        hosts: Hosts of the generation.
        rank: The worker.
        deadline: Makes the deadline of a transfer, given what reports peers.
        report: Reports peers to the agent, if there is one.

    Attributes:
        hosts: The argument.
        host: The position of this worker's host.
        lanes: The lanes that this worker serves.
        others: The positions of the other hosts.
        waits: Time that it waited in the newest exchange for the sums of each other host,
            nanoseconds.
    """

    def __init__(
        self,
        hosts: GroupHosts,
        rank: int,
        deadline: Callable[[StallReport], Deadline],
        report: PeerReport = ignore,
    ) -> None:
        self.hosts = hosts
        self.host = hosts.host_of(rank)
        self.lanes = hosts.lanes(rank)
        self.others = [host for host in range(len(hosts.ranks)) if host != self.host]
        self.waits: dict[int, int] = {}
        self._deadline = deadline
        self._report_peer = report
        self._connections: dict[Place, socket.socket] = {}

    def connect(self, listener: Listener, generation: int) -> Self:
        """Connect to the workers of other hosts that serve the same lanes.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It takes too long.
        """
        hosts = self.hosts
        addresses = {place: hosts.addresses[self.rank_at(place)] for place in self._places}
        peers = Peers(generation=generation, key=hosts.key, host=self.host, addresses=addresses)
        self._connections = listener.connect(peers, self._deadline(self._report))
        return self

    def transfer(self, flows: Mapping[Place, tuple[Buffers, Buffers]], what: str) -> None:
        """Send and receive; see `tcp.transfer`.

        Args:
            flows: Buffers to send to each place, and buffers to receive from it.
            what: Subject of the wait, in words.
        """
        connected = {place: (self._connections[place], *both) for place, both in flows.items()}
        transfer(connected, self._deadline(self._report), what)

    def await_event(self, event: threading.Event, what: str) -> None:
        """Wait until another thread, which exchanges with all other hosts, sets `event`.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        self._deadline(self._report).until(event, what, self._places)

    def await_abort(self, what: str) -> NoReturn:
        """Report that connections to other hosts have broken, and wait for what is decided.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        for place in self._places:
            self._report(place, is_broken=True)
        self._deadline(self._report).wait(None, 0, what)
        raise AssertionError("unreachable")

    @property
    def _places(self) -> list[Place]:
        return [(host, lane) for host in self.others for lane in self.lanes]

    @property
    def longest_wait(self) -> tuple[int, int]:
        """The host with the longest of `waits`, and how long that is."""
        host = max(self.waits, key=lambda each: self.waits[each], default=self.host)
        return host, self.waits.get(host, 0)

    def rank_at(self, place: Place) -> int:
        """The worker that serves a lane of another host."""
        host, lane = place
        return self.hosts.ranks[host][lane % len(self.hosts.ranks[host])]

    def _report(self, place: Place, *, is_broken: bool) -> None:
        self._report_peer(self.rank_at(place), is_broken=is_broken)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
