"""Placement: on which host each rank runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

NAMED_HOSTS: Final = 3
"""The most hosts that `in_words` names."""


def place(
    world_size: int, capacity: Mapping[str, int], present: Mapping[int, str]
) -> dict[int, str]:
    """Give every rank a host, as far as there is room.

    A rank stays where it is while its host has room for it. The others fill the hosts in name
    order, those first that have some already: neighbouring ranks, whose shards meet soonest in the
    reduction tree, share a host, and a new worker finds its state on its own.

    Args:
        world_size: Ranks wanted.
        room: Workers that each host can run.
        present: Where ranks are now.

    Returns:
        The host by rank, in rank order; ranks for which there is no room are not in it.
    """
    free, used = Counter(capacity), set(present.values())
    placed: dict[int, str] = {}
    for rank, host in sorted(present.items()):
        if free[host] > 0:
            placed[rank] = host
            free[host] -= 1
    hosts = sorted(free, key=lambda host: (host not in used, host))
    seats = [host for host in hosts for _ in range(free[host])]
    absent = (rank for rank in range(world_size) if rank not in placed)
    return dict(sorted((placed | dict(zip(absent, seats, strict=False))).items()))


def by_host(members: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """The ranks of each host, in rank order."""
    ranks: dict[str, list[int]] = {}
    for rank, host in members.items():
        ranks.setdefault(host, []).append(rank)
    return {host: tuple(own) for host, own in ranks.items()}


def in_words(hosts: Mapping[str, Sequence[int]]) -> str:
    """The ranks of each host as words; names the first NAMED_HOSTS of them."""
    named = [f"{_in_words(ranks)} on {host}" for host, ranks in hosts.items()][:NAMED_HOSTS]
    more = len(hosts) - len(named)
    return " and ".join([*named, *([f"{more} more hosts"] if more else [])])


def _in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}"
