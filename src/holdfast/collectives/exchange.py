"""Exchange: how the hosts of a generation add their partial sums, block by block.

    send     outline ─▶ sums of the other's cell, means of the own ─▶ contribution
    receive  outline ─▶ sums of the own cell, means of the other's ─▶ contribution
                            └▶ add, divide, write to the root

A host passes on the sums at the frontier of what its workers have computed: the highest nodes of
the tree that it has whole. The owner of a block adds them where the tree does, so the same pairs
are added as on one host.

An outline says which nodes follow and what they weigh. That is known before the last shard has its
gradient, so blocks can be exchanged while a backward pass computes others. A contribution carries
the rest, which is small: losses, flags, and the vote, digest and times of each worker. All lengths
follow from the two.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch

from holdfast.collectives.network import Network
from holdfast.collectives.slot import NAMES_BYTES, NUM_STATS, SlotLayout
from holdfast.collectives.tcp import Buffers, Place
from holdfast.core.balance.times import StepTimes
from holdfast.errors import ProtocolError

AHEAD: Final = 4
"""Blocks of one host that may wait until those of the others have come."""
Cells = Sequence[Sequence[Sequence[int]]]
"""The blocks of each host and lane."""
Transfer = Callable[[Mapping[Place, tuple[Buffers, Buffers]]], None]
"""Sends and receives; see `Network.transfer`."""
Reduce = Callable[[int, Mapping[tuple[int, int], torch.Tensor]], float]
"""Called with a block of the own cell and the other hosts' blocks of it, by host and node; writes
the mean to the root and returns the sum of its squares."""
MAX_CONTRIBUTION_BYTES: Final = 1 << 20
"""Limit of what precedes the tensors of a contribution: some bytes for each node."""
_LENGTH: Final = struct.Struct("=Q")
_HEADER: Final = struct.Struct("=??")
"""Precedes each block: whether it is a mean, and whether its host has computed all shards."""
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
class Outline:
    """The sums that a host passes on in a step.

    Attributes:
        plans: Digests of the plans that its workers have followed: one, unless something is wrong.
        weights: The weight of each node that it has whole; None for one that weighs nothing.
    """

    plans: Sequence[int] = ()
    weights: dict[int, float | None] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """The nodes of which blocks are sent."""
        return [node for node, weight in self.weights.items() if weight is not None]

    def send(self) -> Iterator[memoryview]:
        """This outline, in buffers."""
        weights = [(node, w if w is None else w.hex()) for node, w in self.weights.items()]
        yield _message([list(self.plans), weights])

    def receive(self) -> Iterator[memoryview]:
        """Buffers to receive an outline into, which fill this one."""
        text = yield from _received()
        self.plans, weights = json.loads(text)
        self.weights = {node: w if w is None else float.fromhex(w) for node, w in weights}


@dataclass(slots=True, kw_only=True)
class Contribution:
    """Contribution of a host to a step, apart from blocks.

    Attributes:
        votes, replica_digests, step_times: Values of its workers, in rank order; see `Reduced`.
        sums: Each node that it has whole; None for one that weighs nothing.
        is_valid: False if blocks were sent that have changed since: all are exchanged again.
    """

    votes: tuple[int, ...] = ()
    replica_digests: tuple[int, ...] = ()
    step_times: tuple[StepTimes, ...] = ()
    sums: dict[int, Summary | None] = field(default_factory=dict)
    is_valid: bool = True

    @property
    def nodes(self) -> list[int]:
        """The nodes of which blocks are sent."""
        return [node for node, summary in self.sums.items() if summary is not None]

    def send(self) -> Iterator[memoryview]:
        """This contribution, in buffers."""
        nodes = {node: summary is not None for node, summary in self.sums.items()}
        # JSON first, after its length. From its nodes the receiver knows which tensors follow, and
        # their sizes from the layout, which all hosts share.
        of_workers = [self.votes, self.replica_digests, self.step_times]
        yield _message([*of_workers, list(nodes.items()), self.is_valid])
        for summary in self.sums.values():
            if summary is not None:
                yield from map(bytes_of, summary.parts())

    def receive(self, layout: SlotLayout) -> Iterator[memoryview]:
        """Buffers to receive a contribution into, which fill this one."""
        text = yield from _received()
        votes, digests, times, nodes, self.is_valid = json.loads(text)
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


class Computed(Protocol):
    """Says what a worker has computed of a step whose blocks are exchanged."""

    @property
    def is_all(self) -> bool:
        """True if all shards are computed."""
        ...

    def is_final(self, index: int) -> bool:
        """True if a block of the sums of this host changes no more."""
        ...


class AllComputed:
    """All of a step; a `Computed`."""

    is_all = True

    def is_final(self, index: int) -> bool:  # noqa: ARG002  # the protocol's
        """Implements `Computed.is_final`."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Access of an exchange to the blocks of the gradient; see `exact.TreeReducer`.

    Attributes:
        layout: Layout of all slots.
        root: The flat blocks of the root slot.
        computed: Says which of them change no more.
        local_sum: Gives one block of a node that this host has whole.
        squares: float64[num_blocks]; the sum of squares of each block.
    """

    layout: SlotLayout
    root: Sequence[torch.Tensor]
    computed: Computed
    local_sum: Callable[[int, int], torch.Tensor]
    squares: torch.Tensor


def exchange_contributions(
    network: Network, own: Contribution, layout: SlotLayout, what: str
) -> dict[int, Contribution]:
    """Send the contribution of this host to all others; returns theirs, by host.

    Raises:
        Aborted: The generation is over.
    """
    contributions: dict[int, Contribution] = {}

    def receive(host: int) -> Buffers:
        contribution = Contribution()
        began = time.monotonic_ns()
        yield from contribution.receive(layout)
        network.waits[host] = time.monotonic_ns() - began
        contributions[host] = contribution

    network.waits = dict.fromkeys(network.others, 0)
    # On all lanes, as in a `HostExchange`: no worker depends on another one of its host.
    places = [(host, lane) for host in network.others for lane in network.lanes]
    network.transfer({place: (own.send(), receive(place[0])) for place in places}, what)
    return contributions


class HostExchange:
    """One worker's part in one exchange.

    Args:
        network: The connections.
        cells: The blocks of each host and lane, in the order in which they are sent.
        blocks: Access to them.
        outline: Outline of this host.
        begin: Called once the outlines of all other hosts, by host, have come, if all have followed
            one plan. Otherwise no block is exchanged.
        on_computed: Called once all other hosts have computed all shards.

    Attributes:
        contributions: Contributions of the other hosts, once the exchange is over.
        waits: Time that this worker waited for the sums of each other host, nanoseconds.
    """

    def __init__(
        self,
        network: Network,
        cells: Cells,
        blocks: Blocks,
        outline: Outline,
        begin: Callable[[Mapping[int, Outline]], Reduce],
        on_computed: Callable[[], object],
    ) -> None:
        self._network = network
        self._cells = cells
        self._blocks = blocks
        self._outline = outline
        self._begin = begin
        self._reduce: Reduce | None = None
        self._on_computed = on_computed
        self._own: Contribution | None = None
        self._outlines: dict[Place, Outline] = {}
        self._computing = set(network.others)
        self._is_computed = False
        self._computed_at = 0
        self._received: dict[Place, dict[int, dict[int, torch.Tensor]]] = {}
        self._reduced = dict.fromkeys(network.lanes, 0)  # blocks of the own cell, by lane
        self.contributions: dict[int, Contribution] = {}
        self.waits = dict.fromkeys(network.others, 0)

    def contribute(self, own: Contribution) -> None:
        """Contribute what is known once all shards are computed. All blocks are final by then."""
        self._own = own

    def run(self, transfer: Transfer) -> None:
        """Exchange all blocks of this worker's lanes.

        Args:
            transfer: Sends and receives over the connections.

        Raises:
            Aborted: The generation is over.
        """
        # One flow each way for each lane of each other host. All of them take turns in one thread,
        # so every method below that changes state runs without a lock.
        places = [(host, lane) for host in self._network.others for lane in self._network.lanes]
        flows = {place: (self._send(place), self._receive(place)) for place in places}
        transfer(flows)

    @property
    def _has_outlines(self) -> bool:
        return len(self._outlines) == len(self._network.others) * len(self._network.lanes)

    @property
    def is_of_one_plan(self) -> bool:
        """True if all hosts whose outlines have come have followed one plan."""
        outlines = [self._outline, *self._outlines.values()]
        return len({plan for each in outlines for plan in each.plans}) == 1

    def _send(self, place: Place) -> Buffers:
        host, lane = place
        # All workers of a host send the same one, each on its own lanes: no worker depends on
        # another one of its host to learn what comes.
        yield from self._outline.send()
        theirs = self._cells[host][lane]
        blocks = self._cells[self._network.host][lane]
        sums = means = 0
        while not self._has_outlines:
            yield None
        # With two plans some shard was computed by no worker, so nothing can be added.
        while self.is_of_one_plan and (sums < len(theirs) or means < len(blocks)):
            if means < self._reduced[lane]:
                yield self._header(is_mean=True)
                yield bytes_of(self._blocks.root[blocks[means]])
                yield memoryview(_SQUARE.pack(float(self._blocks.squares[blocks[means]])))
                means += 1
            elif sums < len(theirs) and self._blocks.computed.is_final(theirs[sums]):
                yield self._header(is_mean=False)
                # One block for each node of this host's frontier. They are not added here, because
                # no two of them are siblings.
                for node in self._outline.nodes:
                    yield bytes_of(self._blocks.local_sum(node, theirs[sums]))
                sums += 1
            else:
                # The other flows move on, which bring what the reduction still lacks.
                yield None
                self._reduce_what_has_come(lane)  # the own sum may have become final
        while self._own is None:
            yield None
        yield from self._own.send()

    def _header(self, *, is_mean: bool) -> memoryview:
        return memoryview(_HEADER.pack(is_mean, self._has_computed()))

    def _has_computed(self) -> bool:
        """True if this host has computed all shards; notes when that is seen first."""
        is_all = self._blocks.computed.is_all
        if is_all and not self._is_computed:
            self._is_computed = True
            self._computed_at = time.monotonic_ns()
        return is_all

    def _receive(self, place: Place) -> Buffers:
        host, lane = place
        outline = Outline()
        yield from outline.receive()
        self._outlines[place] = outline
        # The worker's last one has come; this happens once. Only now is it known how the sums of
        # all hosts combine, so nothing is reduced before.
        if self._has_outlines and self.is_of_one_plan:
            self._reduce = self._begin({h: each for (h, _), each in self._outlines.items()})
        while not self._has_outlines:
            yield None
        # From here on the term of the root is known, and blocks are reduced as they come.
        self._received[place] = {}
        theirs = self._cells[host][lane]
        blocks = self._cells[self._network.host][lane]
        sums = means = 0
        while self.is_of_one_plan and (sums < len(blocks) or means < len(theirs)):
            # The memory for received blocks is bounded: a fast host waits, by TCP's own flow
            # control, for the slowest one.
            while sums < len(blocks) and sums - self._reduced[lane] >= AHEAD:
                yield None
            began = time.monotonic_ns()
            header = bytearray(_HEADER.size)
            yield memoryview(header)
            is_mean, has_computed = _HEADER.unpack(header)
            if has_computed:
                self._note_computed(host)
            if is_mean:
                yield from self._receive_mean(theirs[means])
                means += 1
            else:
                yield from self._receive_sum(place, outline, sums, began)
                sums += 1
        contribution = Contribution()
        yield from contribution.receive(self._blocks.layout)
        self._note_computed(host)
        self.contributions[host] = contribution

    def _receive_sum(self, place: Place, outline: Outline, count: int, began: int) -> Buffers:
        """Receive a block of the own cell, and reduce it once all have sent their part."""
        host, lane = place
        index = self._cells[self._network.host][lane][count]
        come = {node: torch.empty_like(self._blocks.root[index]) for node in outline.nodes}
        for block in come.values():
            yield bytes_of(block)
        # From the request for a block until it is whole, once all have computed; their sum
        # by host shows which host the others wait for.
        if self._has_computed() and not self._computing:
            self.waits[host] += time.monotonic_ns() - max(began, self._computed_at)
        self._received[place][count] = come
        self._reduce_what_has_come(lane)

    def _receive_mean(self, index: int) -> Buffers:
        """Receive a reduced block with its square: so each host gets all of the gradient, and its
        norm.
        """
        yield bytes_of(self._blocks.root[index])
        square = bytearray(_SQUARE.size)
        yield memoryview(square)
        self._blocks.squares[index] = _SQUARE.unpack(square)[0]

    def _note_computed(self, host: int) -> None:
        if host in self._computing:
            self._computing.remove(host)
            self._computed_at = time.monotonic_ns()
            if not self._computing:
                self._on_computed()

    def _reduce_what_has_come(self, lane: int) -> None:
        """Reduce the blocks of the own cell of which every host has sent its part."""
        blocks = self._cells[self._network.host][lane]
        theirs = [(host, self._received.get((host, lane), {})) for host in self._network.others]
        # Blocks are reduced in their order, each once all hosts have sent their part: additions
        # follow the tree, never the order of arrival.
        while all(self._reduced[lane] in come for _, come in theirs):
            count = self._reduced[lane]
            index = blocks[count]
            if not self._blocks.computed.is_final(index):
                return
            parts = {
                (host, node): block
                for host, come in theirs
                for node, block in come.pop(count).items()
            }
            assert self._reduce is not None, "a block came before the outlines"
            self._blocks.squares[index] = self._reduce(index, parts)
            self._reduced[lane] = count + 1


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _message(content: object) -> memoryview:
    text = json.dumps(content).encode()
    return memoryview(_LENGTH.pack(len(text)) + text)


def _received() -> Generator[memoryview, None, bytes]:
    """Buffers to receive JSON into; returns it.

    Raises:
        ProtocolError: It is too long.
    """
    length = bytearray(_LENGTH.size)
    yield memoryview(length)
    size = _LENGTH.unpack(length)[0]
    if size > MAX_CONTRIBUTION_BYTES:
        raise ProtocolError(f"a contribution of {size:,} bytes; the hosts run different versions")
    text = bytearray(size)
    yield memoryview(text)
    return bytes(text)
