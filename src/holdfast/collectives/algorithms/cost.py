"""Cost: what an all-reduce takes, in the model of R. Hockney (1994): α + bytes · β for a message.

The rounds of an algorithm are counted by running it, without a vector: so there is one description
of each. Within a host a round costs one wait, since a message is only read. Between hosts its
messages start one after the other, and the workers of a host share its link, both ways at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.collectives.algorithms.links import Algorithm, Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Speed of a link.

    Attributes:
        latency_s: α: from a message's start to its arrival, without bytes, seconds.
        byte_s: β: seconds per byte.
    """

    latency_s: float
    byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a group.

    Attributes:
        hosts: The members of each host.
        near: Speed of memory that the workers of a host share.
        far: Speed of the link of a host.
    """

    hosts: Sequence[Sequence[int]]
    near: LinkSpeed
    far: LinkSpeed

    @property
    def num_members(self) -> int:
        return sum(map(len, self.hosts))


def cost(algorithm: Algorithm, size_bytes: int, fabric: Fabric) -> float:
    """Seconds that an all-reduce of `size_bytes` takes."""
    rounds = [_RoundCounter(member, fabric.hosts) for member in range(fabric.num_members)]
    for each in rounds:
        algorithm(each, range(fabric.num_members), range(size_bytes))
    sent = [each.sent for each in rounds]
    return sum(_round_s(of_members, fabric) for of_members in zip(*sent, strict=True))


def tree_cost(size_bytes: int, fabric: Fabric, most_sums: int) -> float:
    """Seconds that the exact tree takes.

    Args:
        size_bytes: Size of the gradient.
        fabric: The links.
        most_sums: Partial sums that a host passes on at most.
    """
    num_hosts = len(fabric.hosts)
    local = max(map(len, fabric.hosts))
    # Two barriers; every worker reads its share of the others, and all read the one result.
    near_s = 2 * fabric.near.latency_s + (local - 1) / local * size_bytes * fabric.near.byte_s
    # Each host owns a share of the blocks: it gets their sums, and sends them back reduced.
    moved = (num_hosts - 1) / num_hosts * size_bytes * (most_sums + 1)
    far_s = 2 * (num_hosts - 1) * fabric.far.latency_s + moved * fabric.far.byte_s
    return near_s + far_s


def _round_s(sent: Sequence[Ranges], fabric: Fabric) -> float:
    """Seconds of one round, given what each member sends."""
    host_of = {member: at for at, host in enumerate(fabric.hosts) for member in host}
    near: Counter[int] = Counter()  # bytes that a member reads
    outgoing: Counter[int] = Counter()  # bytes that a host sends
    incoming: Counter[int] = Counter()
    messages: Counter[int] = Counter()  # that a member sends to other hosts
    for member, ranges in enumerate(sent):
        for peer, elements in ranges.items():
            if host_of[member] == host_of[peer]:
                near[peer] += len(elements)
            else:
                messages[member] += 1
                outgoing[host_of[member]] += len(elements)
                incoming[host_of[peer]] += len(elements)
    near_s = fabric.near.latency_s + max(near.values()) * fabric.near.byte_s if near else 0.0
    most = max(itertools.chain(outgoing.values(), incoming.values()), default=0)
    far_s = max(messages.values(), default=0) * fabric.far.latency_s + most * fabric.far.byte_s
    return near_s + far_s


@dataclass(slots=True)
class _RoundCounter:
    """Implements `links.Links`: keeps what one member would send in each round."""

    member: int
    hosts: Sequence[Sequence[int]]
    sent: list[Ranges] = field(default_factory=list)

    def exchange(self, sends: Ranges, receives: Ranges, *, add: bool) -> None:  # noqa: ARG002
        """Implements `Links.exchange`."""
        self.sent.append({peer: elements for peer, elements in sends.items() if elements})

    def finish(self) -> None:
        """Implements `Links.finish`."""
