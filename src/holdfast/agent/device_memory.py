"""Device memory of workers, as their agent holds it: descriptors, which it does not use.

The memory of a worker exists as long as its descriptor is open somewhere. So it outlives a worker
that is lost, until another worker has taken its rank or the run continues without it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping


class HeldMemory:
    """The descriptors of one host, by rank."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def hold(self, rank: int, fd: int) -> None:
        """Hold the memory of the worker of a rank, in place of that of the worker before."""
        self.drop(rank)
        self._fds[rank] = fd

    def of(self, rank: int) -> int | None:
        """The memory of a rank; None if there is none."""
        return self._fds.get(rank)

    def of_others(self, rank: int) -> Mapping[int, int]:
        """The memory of all other ranks."""
        return {each: fd for each, fd in self._fds.items() if each != rank}

    def keep(self, ranks: Collection[int]) -> None:
        """Drop the memory of all other ranks."""
        for rank in self._fds.keys() - set(ranks):
            self.drop(rank)

    def drop(self, rank: int) -> None:
        """Drop the memory of a rank, if there is any."""
        if (fd := self._fds.pop(rank, None)) is not None:
            os.close(fd)
