"""The voters of a run: how many hosts vote, and which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VOTERS: Final = ((5, 5), (3, 3), (1, 1))
"""Live hosts, at least, and how many of them vote.

Three voters survive the loss of one, five that of two. Two would survive none, and stop at the loss
of either: with two hosts only the leader votes, so that the loss of the other one costs nothing.
"""


def majority_of(voters: Sequence[str]) -> int:
    """The number of votes that decide."""
    return len(voters) // 2 + 1


def next_voters(
    voters: Sequence[str], leader: str, hosts: Sequence[str], *, is_leaving: bool = False
) -> tuple[str, ...]:
    """The voters after the next change; the same if none is due.

    A change adds or removes one host, so any two majorities before and after it have a host in
    common. The leader stays a voter.

    Args:
        voters: The voters now.
        leader: The leader.
        hosts: The live hosts, in the order in which they joined.
        is_leaving: True if another voter must be able to take over.
    """
    # Hosts that vote already are kept, then those that joined first come.
    live = tuple(dict.fromkeys((leader, *(each for each in voters if each in hosts), *hosts)))
    count = next(count for at_least, count in VOTERS if len(live) >= at_least)
    wanted = live[: max(count, 2) if is_leaving else count]
    # A lost voter goes first: each one that stays makes a majority harder to reach.
    lost = [each for each in voters if each not in live]
    surplus = [each for each in voters if each not in wanted]
    if leaving := [*lost, *surplus][:1]:
        return tuple(each for each in voters if each not in leaving)
    added = [each for each in wanted if each not in voters][:1]
    return (*voters, *added)
