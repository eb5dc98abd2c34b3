"""Hierarchical: within each host, then between hosts, then within each host.

    2 hosts of 2 members, whose vectors are cut into as many parts as a host has members:

        host 0   member 0   [a0+a1]  b0         1. within a host, each member adds its part of all
                 member 1    a0     [b0+b1]
                                │       │       2. between hosts, members of equal index make rings:
        host 1   member 2   [a2+a3]  b2            0 with 2 for part a, 1 with 3 for part b
                 member 3    a3     [b2+b3]
                                                3. within a host, each member copies the other parts

Only sums of hosts travel between them: less than in a flat ring, 2 (H - 1) rounds of it instead of
2 (n - 1), and all members of a host share the work. If one host has fewer members, the vector has
so many parts, and further members of other hosts only give and take.

    cost = 2 α' + 2 (L - 1)/L · s β'  +  2 (H - 1) α + 2 (H - 1)/H · s β

for H hosts of L members, with α' and β' within a host, and β of a host's link.

Source: M. Cho et al., BlueConnect, MLSys 2019; Y. Jia et al., Highly scalable deep learning
training system with mixed-precision, arXiv 1807.11205 (2018), section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.collectives.algorithms import ring
from holdfast.collectives.algorithms.links import Algorithm, Links, parts, skip


def all_reduce(
    links: Links, members: Sequence[int], elements: range, between: Algorithm = ring.all_reduce
) -> None:
    """Implements `links.Algorithm`.

    Args:
        links, members, elements: As there.
        between: Adds the parts of hosts, in as many rounds for each lane.
    """
    hosts = [[each for each in host if each in members] for host in links.hosts]
    hosts = [host for host in hosts if host]
    lanes = min(map(len, hosts))
    if links.member not in members:
        skip(links, 1)
        between(links, [each[0] for each in hosts], range(0))
        skip(links, 1)
        return
    host = next(each for each in hosts if links.member in each)
    at = host.index(links.member)
    peers = [each for each in host if each != links.member]
    served = dict(zip(host[:lanes], parts(elements, lanes), strict=True))
    own_part = served.pop(links.member, range(0))
    all_own = dict.fromkeys(peers, own_part)
    links.exchange(served, all_own, add=True)
    # The first members of each host have the sums of their host, one part each.
    if at < lanes:
        between(links, [each[at] for each in hosts], own_part)
    else:  # it only takes part in the rounds
        between(links, [each[0] for each in hosts], range(0))
    links.exchange(all_own, served, add=False)
