"""Exchange: how the hosts of a generation add their partial sums, block by block.

    send     contribution ─▶ blocks of the other's cell, one a partial sum ─▶ reduced blocks
    receive  contribution ─▶ blocks of the own cell ─▶ (add, divide, write) ─▶ reduced blocks

A host passes on the sums at the frontier of what its workers have computed: the highest nodes of
the tree that it has whole. The owner of a block adds them where the tree does, so the same pairs
are added as on one host. A contribution says which nodes follow, and carries all that is small:
weights, losses, flags, and what each worker brings for the others. All lengths follow from it.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from holdfast.collectives.network import Network
from holdfast.collectives.slot import NAMES_BYTES, NUM_STATS, SlotLayout
from holdfast.collectives.tcp import Buffers, Place
from holdfast.core.balance.times import StepTimes
from holdfast.errors import ProtocolError

AHEAD: Final = 4
"""How many blocks of one host may wait until those of the others have come."""
MAX_CONTRIBUTION_BYTES: Final = 1 << 20
"""Limit of what precedes the tensors of a contribution: some bytes for each node."""
_LENGTH: Final = struct.Struct("=Q")
_SQUARE: Final = struct.Struct("=d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All of a partial sum but its blocks; as in `slot.Slot`."""

    stats: torch.Tensor
    used: torch.Tensor
    names: torch.Tensor
    kept: Sequence[torch.Tensor]

    def parts(self) -> list[torch.Tensor]:
        """Its tensors, in the order in which they are sent."""
        return [self.stats, self.used, self.names, *self.kept]

    @classmethod
    def empty(cls, layout: SlotLayout) -> Summary:
        """One to receive into."""
        entries = {entry.name: entry for entry in layout.layout.entries}
        return cls(
            stats=torch.empty(NUM_STATS, dtype=torch.float64),
            used=torch.empty(entries["used"].shape, dtype=torch.uint8),
            names=torch.empty(NAMES_BYTES, dtype=torch.uint8),
            kept=[torch.empty(end - at, dtype=torch.uint8) for at, end in layout.kept_ranges],
        )


@dataclass(slots=True, kw_only=True)
class Contribution:
    """Contribution of a host to a step, apart from blocks.

    Attributes:
        votes, replica_digests, step_times: Values of its workers, in rank order; see `Reduced`.
        sums: Each node that it has whole; None for one that weighs nothing.
    """

    votes: tuple[int, ...] = ()
    replica_digests: tuple[int, ...] = ()
    step_times: tuple[StepTimes, ...] = ()
    sums: dict[int, Summary | None] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """The nodes of which blocks are sent."""
        return [node for node, summary in self.sums.items() if summary is not None]

    def send(self) -> Iterator[memoryview]:
        """This contribution, in buffers."""
        nodes = {node: summary is not None for node, summary in self.sums.items()}
        # JSON first, after its length. From its nodes the receiver knows which tensors follow, and
        # their sizes from the layout, which all hosts share.
        small = [self.votes, self.replica_digests, self.step_times, list(nodes.items())]
        text = json.dumps(small).encode()
        yield memoryview(_LENGTH.pack(len(text)) + text)
        for summary in self.sums.values():
            if summary is not None:
                yield from map(bytes_of, summary.parts())

    def receive(self, layout: SlotLayout) -> Iterator[memoryview]:
        """Buffers to receive a contribution into, which fill this one."""
        length = bytearray(_LENGTH.size)
        yield memoryview(length)
        size = _LENGTH.unpack(length)[0]
        if size > MAX_CONTRIBUTION_BYTES:
            raise ProtocolError(
                f"a contribution of {size:,} bytes; the hosts run different versions"
            )
        text = bytearray(size)
        yield memoryview(text)
        votes, digests, times, nodes = json.loads(text)
        self.votes = tuple(votes)
        self.replica_digests = tuple(digests)
        self.step_times = tuple(StepTimes(*each) for each in times)
        # The tensors are received straight into these summaries, in the order in which they were
        # sent.
        for node, has_weight in nodes:
            self.sums[node] = Summary.empty(layout) if has_weight else None
        for summary in self.sums.values():
            if summary is not None:
                yield from map(bytes_of, summary.parts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Access of an exchange to the blocks of the gradient; see `exact.TreeReducer`.

    Attributes:
        layout: Layout of all slots.
        root: The flat blocks of the root slot.
        local_sum: Gives one block of a node that this host has whole.
        reduce: Called with a block of the own cell and the other hosts' blocks of it, by host and
            node; writes the mean to the root and returns the sum of its squares.
        squares: float64[num_blocks]; the sum of squares of each block.
    """

    layout: SlotLayout
    root: Sequence[torch.Tensor]
    local_sum: Callable[[int, int], torch.Tensor]
    reduce: Callable[[int, Mapping[tuple[int, int], torch.Tensor]], float]
    squares: torch.Tensor


def exchange_contributions(
    network: Network, own: Contribution, layout: SlotLayout, what: str
) -> dict[int, Contribution]:
    """Send the contribution of this host to all others; returns theirs, by host.

    Raises:
        Aborted: The generation is over.
    """
    found: dict[int, Contribution] = {}

    def receive(host: int) -> Buffers:
        contribution = Contribution()
        began = time.monotonic_ns()
        yield from contribution.receive(layout)
        network.waits[host] = time.monotonic_ns() - began
        found[host] = contribution

    network.waits = dict.fromkeys(network.others, 0)
    # On all lanes, as in a `HostExchange`: no worker depends on another one of its host.
    places = [(host, lane) for host in network.others for lane in network.lanes]
    network.transfer({place: (own.send(), receive(place[0])) for place in places}, what)
    return found


class HostExchange:
    """One worker's part in one exchange.

    Args:
        network: The connections.
        cells: The blocks of each host and lane.
        blocks: Access to them.
        own: Contribution of this host.
        on_contributions: Called once the contributions of all other hosts, by host, have come.
    """

    def __init__(
        self,
        network: Network,
        cells: Sequence[Sequence[range]],
        blocks: Blocks,
        own: Contribution,
        on_contributions: Callable[[Mapping[int, Contribution]], None],
    ) -> None:
        self._network = network
        self._cells = cells
        self._blocks = blocks
        self._own = own
        self._on_contributions = on_contributions
        self._contributions: dict[Place, Contribution] = {}
        self._received: dict[Place, dict[int, dict[int, torch.Tensor]]] = {}
        self._reduced = dict.fromkeys(network.lanes, 0)  # blocks of the own cell, by lane

    def run(self, what: str) -> None:
        """Exchange all blocks of this worker's lanes.

        Args:
            what: Activity of the worker, for errors.

        Raises:
            Aborted: The generation is over.
        """
        # One flow each way for each lane of each other host. All of them take turns in this thread,
        # so every method below that changes state runs without a lock.
        places = [(host, lane) for host in self._network.others for lane in self._network.lanes]
        flows = {place: (self._send(place), self._receive(place)) for place in places}
        self._network.waits = dict.fromkeys(self._network.others, 0)
        self._network.transfer(flows, what)

    @property
    def _has_contributions(self) -> bool:
        return len(self._contributions) == len(self._network.others) * len(self._network.lanes)

    def _send(self, place: Place) -> Buffers:
        host, lane = place
        # All workers of a host send the same one, each on its own lanes: no worker depends on
        # another one of its host to learn what comes.
        yield from self._own.send()
        # The cell that the other host owns: one block for each node of this host's frontier. They
        # are not added here, because no two of them are siblings.
        for index in self._cells[host][lane]:
            for node in self._own.nodes:
                yield bytes_of(self._blocks.local_sum(node, index))
        # The way back: blocks of the own cell, each as soon as it is reduced. `yield None` lets the
        # other flows move on, which bring what the reduction still lacks.
        own = self._cells[self._network.host][lane]
        for count, index in enumerate(own, start=1):
            while self._reduced[lane] < count:
                yield None
            yield bytes_of(self._blocks.root[index])
            yield memoryview(_SQUARE.pack(float(self._blocks.squares[index])))

    def _receive(self, place: Place) -> Buffers:
        host, lane = place
        contribution = Contribution()
        yield from contribution.receive(self._blocks.layout)
        self._contributions[place] = contribution
        # The worker's last one has come; this happens once. Only now is it known how the sums of
        # all hosts combine, so nothing is reduced before.
        if self._has_contributions:
            self._on_contributions({h: each for (h, _), each in self._contributions.items()})
        while not self._has_contributions:
            yield None
        # From here on the term of the root is known, and blocks are reduced as they come.
        waiting = self._received[place] = {}
        own = self._cells[self._network.host][lane]
        for count, index in enumerate(own):
            # The memory for received blocks is bounded: a fast host waits, by TCP's own flow
            # control, for the slowest one.
            while count - self._reduced[lane] >= AHEAD:
                yield None
            come: dict[int, torch.Tensor] = {}
            for node in contribution.nodes:
                come[node] = torch.empty_like(self._blocks.root[index])
                # From the request for a block until it is whole; their sum by host shows which host
                # the others wait for.
                began = time.monotonic_ns()
                yield bytes_of(come[node])
                self._network.waits[host] += time.monotonic_ns() - began
            waiting[count] = come
            self._reduce_what_has_come(lane)
        # The cell of the other host comes back reduced, with the squares of its blocks: then this
        # host has all of the gradient, and all of its norm.
        for index in self._cells[host][lane]:
            yield bytes_of(self._blocks.root[index])
            square = bytearray(_SQUARE.size)
            yield memoryview(square)
            self._blocks.squares[index] = _SQUARE.unpack(square)[0]

    def _reduce_what_has_come(self, lane: int) -> None:
        """Reduce the blocks of the own cell of which every host has sent its part."""
        own = self._cells[self._network.host][lane]
        theirs = [(host, self._received.get((host, lane), {})) for host in self._network.others]
        # Blocks are reduced in their order, each once all hosts have sent their part: additions
        # follow the tree, never the order of arrival.
        while all(self._reduced[lane] in come for _, come in theirs):
            count = self._reduced[lane]
            parts = {
                (host, node): block
                for host, come in theirs
                for node, block in come.pop(count).items()
            }
            index = own[count]
            self._blocks.squares[index] = self._blocks.reduce(index, parts)
            self._reduced[lane] = count + 1


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.view(-1).view(torch.uint8).numpy().data
