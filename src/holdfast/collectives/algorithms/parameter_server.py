"""Parameter server: every member serves one part of the vector, all at once.

        member 0   [a0] [b0] [c0]      first round: the server of part a, member 0, gets a1 and a2
        member 1   [a1] [b1] [c1]      and adds them; likewise 1 for b, and 2 for c
        member 2   [a2] [b2] [c2]      second round: each server sends its sum to all

A parameter server that is one process receives n vectors over one link. Cut into a server per
member, each link carries what it carries in a ring, in two rounds instead of 2 (n - 1); but every
member exchanges n - 1 messages at once. In shared memory a message costs nothing: two waits, and
each sum is made in a core's cache. It is synchronous: no member is a step ahead of the others.

    cost = 2 (n - 1) α + 2 (n - 1)/n · s β;  2 α + 2 (n - 1)/n · s β in shared memory

Source: M. Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014; Y.
Jiang et al., A unified architecture for accelerating distributed DNN training (BytePS), OSDI 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.collectives.algorithms.links import Links, parts, skip


def all_reduce(links: Links, members: Sequence[int], elements: range) -> None:
    """Implements `links.Algorithm`."""
    if links.member not in members:
        skip(links, 2)
        return
    served = dict(zip(members, parts(elements, len(members)), strict=True))
    own_part = served.pop(links.member)
    all_own = dict.fromkeys(served, own_part)
    links.exchange(served, all_own, add=True)
    # Every server has the sum of its part.
    links.exchange(all_own, served, add=False)
