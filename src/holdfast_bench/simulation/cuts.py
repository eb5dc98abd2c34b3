"""Cuts: which simulated hosts cannot reach each other. Hosts that can are not mentioned."""

from __future__ import annotations

from collections.abc import Collection
from typing import NewType

Pair = tuple[str, str]
Cut = NewType("Cut", int)


class Cuts:
    """The cuts between the hosts of a cluster; hosts are known by the names of their agents."""

    def __init__(self) -> None:
        self._made = 0
        self._one_way: dict[Cut, Pair] = {}
        self._islands: dict[str, Cut] = {}

    def __bool__(self) -> bool:
        return bool(self._one_way or self._islands)

    def between(self, source: str, target: str) -> Cut:
        """Lose all packets from one host to another; no connection can be made then."""
        cut = self._next()
        self._one_way[cut] = (source, target)
        return cut

    def around(self, hosts: Collection[str]) -> Cut:
        """Cut hosts off from all others."""
        cut = self._next()
        self._islands.update(dict.fromkeys(hosts, cut))
        return cut

    def heal(self, cut: Cut) -> None:
        """Undo a cut."""
        self._one_way.pop(cut, None)
        self._islands = {host: each for host, each in self._islands.items() if each != cut}

    def rename(self, before: str, now: str) -> None:
        """Another agent serves a host."""
        for cut, (source, target) in self._one_way.items():
            renamed = now if source == before else source, now if target == before else target
            self._one_way[cut] = renamed
        if before in self._islands:
            self._islands[now] = self._islands.pop(before)

    def separate(self, one: str, other: str) -> bool:
        """True if two hosts cannot connect, which needs both directions."""
        pairs = self._one_way.values()
        is_one_way = (one, other) in pairs or (other, one) in pairs
        return is_one_way or self._islands.get(one) != self._islands.get(other)

    def severed_in(self, hosts: Collection[str]) -> list[Pair]:
        """Some pairs of hosts that cannot connect, if any; one stands for all of an island. Looks
        at cuts, not at hosts.
        """
        pairs = [pair for pair in self._one_way.values() if pair[0] in hosts and pair[1] in hosts]
        inside = next((host for host in self._islands if host in hosts), None)
        if inside is not None:
            outside = [host for host in hosts if self.separate(inside, host)]
            pairs += [(inside, min(outside))] if outside else []
        return pairs

    def _next(self) -> Cut:
        self._made += 1
        return Cut(self._made)
