"""Host links: shared memory within a host, and connections between hosts, in one round."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from holdfast.collectives.algorithms.compressed_links import CompressedLinks
from holdfast.collectives.algorithms.links import Ranges
from holdfast.collectives.algorithms.network_links import NetworkLinks
from holdfast.collectives.algorithms.shared_links import SharedLinks
from holdfast.collectives.compression.codec import Codec
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network


class HostLinks:
    """Implements `links.Links` for the members of several hosts.

    Args:
        group: The workers.
        network: Its connections.
        vectors: The flat vector of each worker of this host, in shared memory, by member.
        codec: Encodes what is sent to other hosts; None to send it as it is.

    Attributes:
        compressed: Links to other hosts, if they compress.
    """

    def __init__(
        self,
        group: Group,
        network: Network,
        vectors: Mapping[int, torch.Tensor],
        codec: Codec | None = None,
    ) -> None:
        self._group = group
        self._near = SharedLinks(group, vectors)
        vector = vectors[group.member_index]
        self.compressed: CompressedLinks | None = None
        self._far = NetworkLinks(group, network, vector)
        if codec is not None:
            self._far = self.compressed = CompressedLinks(group, network, vector, codec)
        self._local = frozenset(vectors)
        self.member = self._near.member
        self.hosts = self._far.hosts

    def exchange(self, sends: Ranges, receives: Ranges, *, add: bool) -> None:
        """Implements `Links.exchange`."""
        # Others of this host may read before this worker waits for other hosts: so no members wait
        # for each other in a circle.
        number = self._group.begin_round()
        self._far.exchange(self._without_local(sends), self._without_local(receives), add=add)
        near = {peer: elements for peer, elements in receives.items() if peer in self._local}
        self._near.take(number, near, add=add)

    def finish(self) -> None:
        """Implements `Links.finish`."""
        self._near.finish()

    def _without_local(self, ranges: Ranges) -> Ranges:
        return {peer: elements for peer, elements in ranges.items() if peer not in self._local}
