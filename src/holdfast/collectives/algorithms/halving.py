"""Halving and doubling: pairs exchange half of what they still add, and then the way back.

    4 members; what each still adds, in quarters of the vector:

        member 0   [0 1 2 3] ─▶ [0 1] ─▶ [0]       first round: 0 with 1, 2 with 3
        member 1   [0 1 2 3] ─▶ [2 3] ─▶ [2]       second round: 0 with 2, 1 with 3
        member 2   [0 1 2 3] ─▶ [0 1] ─▶ [1]       in each, a member gives one half away
        member 3   [0 1 2 3] ─▶ [2 3] ─▶ [3]       and adds the other half of its partner

Then each has a whole part, and the same rounds in reverse exchange these. It takes as few rounds as
there can be, 2 log2 n, and moves no more than a ring. Neighbours exchange first, when most is to be
moved: they are on one host.

If n is no power of two, 2^k + r, the first 2 r members fold into r: each even one hands its vector
to the next, waits, and gets the result. That costs two rounds with the whole vector.

    cost = 2 k α + 2 (2^k - 1)/2^k · s β,  and 2 α + 2 s β if r > 0

Source: R. Rabenseifner, Optimization of collective reduction operations, ICCS 2004; R. Thakur et
al., Optimization of collective communication operations in MPICH, IJHPCA 19 (2005), section 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.collectives.algorithms.links import Links, parts, skip


def all_reduce(links: Links, members: Sequence[int], elements: range) -> None:
    """Implements `links.Algorithm`."""
    levels = len(members).bit_length() - 1
    extra = len(members) - (1 << levels)
    fold_rounds = 1 if extra else 0
    if links.member not in members:
        skip(links, 2 * levels + 2 * fold_rounds)
        return
    at = members.index(links.member)
    is_folded = at < 2 * extra
    # Fold: from here on the even ones among the first 2 r take no part.
    if is_folded and at % 2 == 0:
        keeper = members[at + 1]
        links.exchange({keeper: elements}, {}, add=True)
        skip(links, 2 * levels)
        links.exchange({}, {keeper: elements}, add=False)
        return
    folded = {members[at - 1]: elements} if is_folded else {}
    if extra:
        links.exchange({}, folded, add=True)
    _among(links, [*members[1 : 2 * extra : 2], *members[2 * extra :]], elements)
    if extra:
        links.exchange(folded, {}, add=False)


def _among(links: Links, members: Sequence[int], elements: range) -> None:
    """All-reduce over members whose number is a power of two."""
    at = members.index(links.member)
    mine = elements
    levels = []
    bit = 1
    while bit < len(members):
        partner = members[at ^ bit]
        lower, upper = parts(mine, 2)
        mine, theirs = (upper, lower) if at & bit else (lower, upper)
        links.exchange({partner: theirs}, {partner: mine}, add=True)
        levels.append((partner, mine, theirs))
        bit *= 2
    # `mine` is whole now. Each level back doubles what is.
    for partner, mine, theirs in reversed(levels):
        links.exchange({partner: mine}, {partner: theirs}, add=False)
