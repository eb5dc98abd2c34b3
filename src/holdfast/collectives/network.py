"""Network: the connections of one worker to the other hosts of its generation.

The gradient is divided into lanes, as many as the largest host has workers. A worker of a smaller
host serves several. Workers of different hosts that serve the same lane are connected. So a place,
a host and a lane, names one connection:

    lane 0 to n - 1   sums between hosts
    lane n and more   a mesh, where it is asked for: each worker to all workers of other hosts
    BACKGROUND        sums that are sent in a thread while the worker computes; one worker a host

Connections are made when a generation begins, and closed with it. No wait outlives it: a deadline
looks whether the generation is over, and reports to the agent who does not send.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, Self

from holdfast.collectives.connections import Listener, Peers
from holdfast.collectives.tcp import (
    Buffers,
    ConnectionLost,
    Deadline,
    Place,
    StallReport,
    Wake,
    transfer,
)
from holdfast.core.step.plan import lanes_of
from holdfast.errors import Aborted

BACKGROUND: Final = (1 << 32) - 1
"""Lane of a transfer in the background, where each host has one worker: after all others."""


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

    def mesh_place(self, rank: int, peer: int) -> Place:
        """The place of a worker of another host, on the one connection of this pair of workers.

        Its lane comes after those that workers serve, and is the same for both.
        """
        ends = sorted((self.host_of(each), each) for each in (rank, peer))
        first, second = (self.ranks[host].index(each) for host, each in ends)
        return self.host_of(peer), self.num_lanes * (1 + first) + second

    def lanes(self, rank: int) -> range:
        """The lanes that a worker serves."""
        ranks = self.ranks[self.host_of(rank)]
        return lanes_of(ranks.index(rank), len(ranks), self.num_lanes)


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
        self._rank = rank
        self.host = hosts.host_of(rank)
        self.lanes = hosts.lanes(rank)
        self.others = [host for host in range(len(hosts.ranks)) if host != self.host]
        self.waits: dict[int, int] = {}
        self._deadline = deadline
        self._report_peer = report
        self._connections: dict[Place, socket.socket] = {}
        self._background: BackgroundTransfer | None = None

    def connect(self, listener: Listener, generation: int, *, has_mesh: bool = False) -> Self:
        """Connect to the workers of other hosts that serve the same lanes.

        Args:
            listener: Accepts connections.
            generation: The generation.
            has_mesh: True to connect to every worker of other hosts, too; see `mesh_place`.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It takes too long.
        """
        hosts = self.hosts
        places = list(self._places)
        if has_mesh:
            places += [self.mesh_place(peer) for host in self.others for peer in hosts.ranks[host]]
        addresses = {place: hosts.addresses[self.rank_at(place)] for place in places}
        peers = Peers(generation=generation, key=hosts.key, host=self.host, addresses=addresses)
        self._connections = listener.connect(peers, self._deadline(self._report))
        return self

    def transfer(self, flows: Mapping[Place, tuple[Buffers, Buffers]], what: str) -> None:
        """Send and receive; see `tcp.transfer`.

        Args:
            flows: Buffers to send to each place, and buffers to receive from it.
            what: Subject of the wait, in words.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        transfer(self._connected(flows), self._deadline(self._report), what)

    def exchange(self, flows: Mapping[Place, tuple[Buffers, Buffers]], what: str) -> None:
        """Send and receive like `transfer`, to hosts that may have begun to with `begin`."""
        transfer(self._in_background(flows), self._deadline(self._report), what)

    def begin(self, flows: Mapping[Place, tuple[Buffers, Buffers]], what: str) -> None:
        """Send and receive in the background, over connections of its own; see
        `transfer`. Only if `has_background_lane`.
        """

        def move(wake: Wake, check: Callable[[], None]) -> None:
            deadline = self._deadline(self._report).in_thread(check)
            transfer(self._in_background(flows), deadline, what, wake)

        self.cancel()
        self._background = BackgroundTransfer(move)

    def wake(self) -> None:
        """Have what was begun look again at what there is to send."""
        if self._background is not None:
            self._background.wake()

    def note_computed(self) -> None:
        """Note, in the thread of what was begun, that the others have computed all they send."""
        if self._background is not None:
            self._background.computed.set()

    def finish(self, what: str, on_computed: Callable[[], object]) -> None:
        """Wait until what was begun is over.

        Args:
            what: Subject of the wait, in words.
            on_computed: Called once the others have computed all that they send.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        assert self._background is not None, "nothing was begun"
        try:
            self._background.wake()
            self.await_event(self._background.computed, what)
            on_computed()
            self.await_event(self._background.over, what)
            self._background.result()
        except ConnectionLost as lost:
            # The thread reports no one: this worker does, and waits for what its agent says.
            self._deadline(self._report).await_decision(lost, what)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End what was begun."""
        if self._background is not None:
            self._background.end()
            self._background = None

    def _in_background(
        self, flows: Mapping[Place, tuple[Buffers, Buffers]]
    ) -> dict[Place, tuple[socket.socket, Buffers, Buffers]]:
        if not self.has_background_lane:
            return self._connected(flows)
        return self._connected({(host, BACKGROUND): both for (host, _), both in flows.items()})

    def _connected(
        self, flows: Mapping[Place, tuple[Buffers, Buffers]]
    ) -> dict[Place, tuple[socket.socket, Buffers, Buffers]]:
        return {place: (self._connections[place], *both) for place, both in flows.items()}

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
        lost = ConnectionLost("connections of a library")
        lost.places = self._places
        self._deadline(self._report).await_decision(lost, what)

    @property
    def has_background_lane(self) -> bool:
        """True if a worker can exchange in the background: if each host has one worker."""
        return self.hosts.num_lanes == 1

    @property
    def _places(self) -> list[Place]:
        lanes = [*self.lanes, BACKGROUND] if self.has_background_lane else self.lanes
        return [(host, lane) for host in self.others for lane in lanes]

    @property
    def longest_wait(self) -> tuple[int, int]:
        """The host with the longest of `waits`, and how long that is."""
        host = max(self.waits, key=lambda each: self.waits[each], default=self.host)
        return host, self.waits.get(host, 0)

    def mesh_place(self, peer: int) -> Place:
        """The place of any worker of another host, where there is a mesh."""
        return self.hosts.mesh_place(self._rank, peer)

    def rank_at(self, place: Place) -> int:
        """The worker of another host that serves a lane, or is the other end of a mesh's."""
        host, lane = place
        ranks = self.hosts.ranks[host]
        if lane == BACKGROUND:
            return ranks[0]
        pair, index = divmod(lane, self.hosts.num_lanes)
        # Above the lanes that workers serve, `mesh_place` has packed the positions of both ends, of
        # which that in the lower host comes first.
        if pair == 0:
            return ranks[lane % len(ranks)]
        return ranks[pair - 1 if host < self.host else index]

    def _report(self, place: Place, *, is_broken: bool) -> None:
        self._report_peer(self.rank_at(place), is_broken=is_broken)

    def close(self) -> None:
        """Close all connections."""
        self.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class BackgroundTransfer:
    """One transfer in a thread, while the worker computes what is sent; it begins at once.

    Args:
        transfer: Sends and receives. It is given what wakes it, and what raises once it is to end.

    Attributes:
        computed: Set once the others have computed all that they send, or it has ended.
        over: Set once it has ended.
    """

    def __init__(self, transfer: Callable[[Wake, Callable[[], None]], None]) -> None:
        self.computed = threading.Event()
        self.over = threading.Event()
        self._transfer = transfer
        self._wake = Wake()
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._transfer(self._wake, self._check)
        except BaseException as error:  # noqa: BLE001  # the worker's thread raises it
            self._error = error
        finally:
            # Also after an error: the worker may wait for either, and then raises it.
            self.computed.set()
            self.over.set()

    def _check(self) -> None:
        if self._is_cancelled:
            raise Aborted("the exchange was cancelled")

    def wake(self) -> None:
        """Have it look again at what there is to send."""
        if not self.over.is_set():
            self._wake.set()

    def result(self) -> None:
        """Raise what has ended it, if that was no success. It is over by now."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it, if it is not over, and free what it has."""
        self._is_cancelled = True
        self._wake.set()
        self._thread.join()
        self._wake.close()
