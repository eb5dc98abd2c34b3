"""Device exchange: how the devices of several hosts add their partial sums, by messages.

    contributions ─▶ sums of the others' cells ─▶ (add, divide) ─▶ means of all cells

It is the exchange of `exchange` with other means: contributions travel as there, and from their
nodes every worker knows which messages follow. A message is a sum of a node for a whole cell, or
the mean of a cell, and moves from one device to another. What carries messages adds nothing: the
owner of a cell adds its sums along the tree, so the bits are those of every other exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from holdfast.collectives.device_sums import DeviceSums
from holdfast.collectives.network import Network
from holdfast.collectives.reduction import DeviceMessages, Message
from holdfast.collectives.tcp import Place
from holdfast.core.step import tree

Cells = Sequence[Sequence[Sequence[int]]]
"""The blocks of each host and lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Sums of which the mean is formed.

    Attributes:
        term: Term of the whole sum; its slots are nodes, under the first rank of their host.
        weight: Weight of the whole sum.
        nodes: Nodes of which each host sends sums, by host.
        local: Term of each node of this host; None for one that weighs nothing.
    """

    term: tree.Term
    weight: float
    nodes: Mapping[int, Sequence[int]]
    local: Mapping[int, tree.Term | None]


class DeviceExchange:
    """One worker's part in the exchanges of a generation.

    Args:
        network: Hosts and lanes.
        cells: Blocks of each cell.
        sums: Adds on the device.
        messages: Moves sums and means.
    """

    def __init__(
        self, network: Network, cells: Cells, sums: DeviceSums, messages: DeviceMessages
    ) -> None:
        self._network = network
        self._cells = cells
        self._sums = sums
        self._messages = messages

    def run(self, mean: Mean, what: str) -> None:
        """Get the mean of all cells of this worker's lanes, and show it to its host.

        Args:
            mean: Sums of which it is formed.
            what: Activity of the worker, for errors.

        Raises:
            Aborted: The generation is over.
        """
        here = self._network.host
        to_send = sum_messages(self._network, self._cells, mean.nodes, is_sent=True)
        sends = [
            (rank, self._sum(mean, node, self._cells[host][lane]))
            for rank, (host, lane), node in to_send
        ]
        sums: dict[int, dict[tuple[int, int], torch.Tensor]] = {
            lane: {
                (self._first_rank(here), node): self._sum(mean, node, self._cells[here][lane])
                for node in mean.nodes[here]
            }
            for lane in self._network.lanes
            if len(self._cells[here][lane])
        }
        receives: list[Message] = []
        for rank, (host, lane), node in sum_messages(
            self._network, self._cells, mean.nodes, is_sent=False
        ):
            received = self._sums.new_cell(self._cells[here][lane])
            sums[lane][self._first_rank(host), node] = received
            receives.append((rank, received))
        self._messages.exchange(sends, receives, what)
        # This worker has every sum of its own cells: it adds them as the tree does.
        for lane, of_cell in sums.items():
            self._sums.add_cell(mean.term, mean.weight, self._cells[here][lane], of_cell)
        self._exchange_means(what)
        self._sums.show_share()

    def _exchange_means(self, what: str) -> None:
        sends: list[Message] = []
        receives: list[Message] = []
        for rank, (host, lane) in places(self._network):
            for cell, messages in (
                (self._cells[self._network.host][lane], sends),
                (self._cells[host][lane], receives),
            ):
                if len(cell):
                    messages.append((rank, self._sums.mean_of_cell(cell)))
        self._messages.exchange(sends, receives, what)

    def _sum(self, mean: Mean, node: int, cell: Sequence[int]) -> torch.Tensor:
        term = mean.local[node]
        assert term is not None, "a sum that weighs nothing is not sent"
        return self._sums.sum_of_cell(term, cell)

    def _first_rank(self, host: int) -> int:
        return self._network.hosts.ranks[host][0]


def places(network: Network) -> Iterator[tuple[int, Place]]:
    """The workers with which one exchanges, each with its host and a lane that both serve: in an
    order that is the same at both ends.
    """
    for host in network.others:
        for lane in network.lanes:
            yield network.rank_at((host, lane)), (host, lane)


def sum_messages(
    network: Network, cells: Cells, nodes: Mapping[int, Sequence[int]], *, is_sent: bool
) -> list[tuple[int, Place, int]]:
    """The sums that one worker sends or receives, in order: the other worker, its host and the
    lane, and the node. Sent sums are of the cell of the other host, received ones of the own.

    Args:
        network: Hosts and lanes.
        cells: Blocks of each cell; there are no messages for one without blocks.
        nodes: Nodes of which each host sends sums.
        is_sent: True for the sums that the worker sends.
    """
    return [
        (rank, (host, lane), node)
        for rank, (host, lane) in places(network)
        if len(cells[host if is_sent else network.host][lane])
        for node in nodes[network.host if is_sent else host]
    ]
