"""Network links: members of different hosts send each other ranges over TCP, encrypted or not.

Bytes are sent from the vector and received into it. Only what is added is received elsewhere first,
a piece at a time, so that a sum has the order of its members and not that of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from holdfast.collectives.algorithms.links import Ranges, pieces
from holdfast.collectives.exchange import bytes_of
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.collectives.tcp import Buffers

PIECE: Final = 1 << 18
"""Elements that are received before they are added: few enough to stay in a core's cache."""

LONG_PIECE: Final = 1 << 20
"""Elements between two looks whether the generation is over."""


class NetworkLinks:
    """Implements `links.Links` over the connections of a network that has a mesh.

    Args:
        group: The workers.
        network: Its connections.
        vector: The flat vector of this worker.

    Attributes:
        what: Activity of the worker, for errors.
    """

    def __init__(self, group: Group, network: Network, vector: torch.Tensor) -> None:
        self._group = group
        self._network = network
        self._vector = vector
        self._scratch: dict[int, torch.Tensor] = {}
        self.what = "all-reducing a vector"
        self.member = group.member_index
        self.hosts: Sequence[Sequence[int]] = [
            [group.members.index(rank) for rank in ranks] for ranks in network.hosts.ranks
        ]

    def exchange(self, sends: Ranges, receives: Ranges, *, add: bool) -> None:
        """Implements `Links.exchange`."""
        sent = {peer: elements for peer, elements in sends.items() if elements}
        taken = {peer: elements for peer, elements in receives.items() if elements}
        counts: dict[range, Counter[int]] = {}  # members that were added, by range and piece
        flows: dict[int, tuple[Buffers, Buffers]] = {}
        for peer in {**sent, **taken}:
            outgoing: Buffers = iter(())
            incoming: Buffers = iter(())
            if peer in sent:
                outgoing = self._send(sent[peer], add=add)
            if peer in taken and add:
                order = sum(taken[other] == taken[peer] for other in taken if other in flows)
                added = counts.setdefault(taken[peer], Counter())
                incoming = self._add(peer, taken[peer], added, order)
            elif peer in taken:
                incoming = self._replace(taken[peer])
            flows[peer] = outgoing, incoming
        if flows:
            places = {
                self._network.mesh_place(self._group.members[peer]): flows[peer] for peer in flows
            }
            self._network.transfer(places, self.what)

    def finish(self) -> None:
        """Implements `Links.finish`: no other member reads this vector."""

    def _send(self, elements: range, *, add: bool) -> Buffers:  # noqa: ARG002
        """Send elements, for others to add or to keep."""
        return self._bytes_of(elements)

    def _replace(self, elements: range) -> Buffers:
        """Receive elements in place of the own ones."""
        return self._bytes_of(elements)

    def _bytes_of(self, elements: range) -> Iterator[memoryview]:
        for piece in pieces(elements, LONG_PIECE):
            self._group.check_abort()
            yield bytes_of(self._vector[piece])

    def _add(self, peer: int, elements: range, added: Counter[int], order: int) -> Buffers:
        """Receive elements of a member, and add them after those of `order` others."""
        if peer not in self._scratch:
            self._scratch[peer] = torch.empty(PIECE, dtype=self._vector.dtype)
        for number, piece in enumerate(pieces(elements, PIECE)):
            self._group.check_abort()
            values = self._vector[piece]
            come = self._scratch[peer][: len(values)]
            yield bytes_of(come)
            while added[number] < order:
                yield None
            values.add_(come)
            added[number] += 1
