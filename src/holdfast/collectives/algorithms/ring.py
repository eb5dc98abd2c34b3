"""Ring: each member passes one part on to its neighbour in every round.

    parts of 3 members, after the first round:

        member 0   [a0   ] [b0   ] [c0+c2]      each sends one part to the next member, which adds
        member 1   [a1+a0] [b1   ] [c1   ]      its own and sends the sum on in the next round:
        member 2   [a2   ] [b2+b1] [c2   ]      a 0▶1▶2, b 1▶2▶0, c 2▶0▶1

After n - 1 rounds each part is whole at one member; n - 1 more rounds pass it around. No member
sends more than 2 (n - 1)/n of the vector, which is the least possible, whatever n is. The rounds
make it slow for short vectors.

    cost = 2 (n - 1) α + 2 (n - 1)/n · s β

Source: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, J. Parallel Distrib. Comput. 69 (2009), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.collectives.algorithms.links import Links, parts, skip


def all_reduce(links: Links, members: Sequence[int], elements: range) -> None:
    """Implements `links.Algorithm`."""
    size = len(members)
    if links.member not in members:
        skip(links, 2 * (size - 1))
        return
    at = members.index(links.member)
    after, before = members[(at + 1) % size], members[at - 1]
    pieces = parts(elements, size)
    # Reduce-scatter: what came in one round is sent in the next.
    for turn in range(size - 1):
        sent, taken = pieces[(at - turn) % size], pieces[(at - turn - 1) % size]
        links.exchange({after: sent}, {before: taken}, add=True)
    # Each member has one whole part, the one after its own. All-gather: it goes around.
    for turn in range(size - 1):
        sent, taken = pieces[(at + 1 - turn) % size], pieces[(at - turn) % size]
        links.exchange({after: sent}, {before: taken}, add=False)
