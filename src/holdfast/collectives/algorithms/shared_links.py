"""Shared links: members of one host read each other's vectors in shared memory.

To send is to say that a range is complete; the receiver reads it where it is. So an element is
moved once, by the member that adds it or keeps it, and never staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.algorithms.links import Ranges, pieces
from holdfast.collectives.group import Group
from holdfast.collectives.slot import BLOCK

COPY_BYTES: Final = 64 << 20
"""Bytes that are copied at a time: milliseconds, and still past the cache."""


class SharedLinks:
    """Implements `links.Links` for the members of one host.

    Args:
        group: The workers; those of this host are `group.local`.
        vectors: The flat vector of each worker of this host, in shared memory, by member.
    """

    def __init__(self, group: Group, vectors: Mapping[int, torch.Tensor]) -> None:
        self._group = group
        self._vectors = vectors
        self._own = vectors[group.member_index]
        self.member = group.member_index
        self.hosts: Sequence[Sequence[int]] = [tuple(vectors)]

    def exchange(self, sends: Ranges, receives: Ranges, *, add: bool) -> None:  # noqa: ARG002
        """Implements `Links.exchange`."""
        self.take(self._group.begin_round(), receives, add=add)

    def take(self, number: int, receives: Ranges, *, add: bool) -> None:
        """Take ranges of others, once they have begun a round.

        Args:
            number: Number of the round.
            receives, add: As in `Links.exchange`.
        """
        taken = {peer: elements for peer, elements in receives.items() if elements}
        for peer in taken:
            self._group.await_round(self._group.members[peer], number)
        # All ranges that are read here are complete, and stay so; see `links`.
        if add:
            self._add(taken)
            return
        for peer, elements in taken.items():
            for piece in pieces(elements, COPY_BYTES // self._own.element_size()):
                self._group.check_abort()
                copy_past_cache(self._own[piece], self._vectors[peer][piece])

    def _add(self, taken: Ranges) -> None:
        # Block by block, so that a sum of several members stays in the cache.
        for block in dict.fromkeys(taken.values()):
            peers = [self._vectors[peer] for peer, elements in taken.items() if elements == block]
            for piece in pieces(block, BLOCK):
                self._group.check_abort()
                total = self._own[piece]
                for vector in peers:
                    total.add_(vector[piece])

    def finish(self) -> None:
        """Implements `Links.finish`."""
        number = self._group.begin_round()
        for peer in self._group.local:
            self._group.await_round(peer, number)
