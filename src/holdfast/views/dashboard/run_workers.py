"""RunWorkers: the workers of a run by host, and the color of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from holdfast.record.run_record import RunRecord
from holdfast.views.dashboard.theme import Colors, mixed

FEW: Final = 8
"""Up to so many workers are drawn one by one."""
MAX_WORST: Final = 3
"""Most workers that are named; of more, the worst."""
_ATTEMPT: Final = re.compile(r"(?<=.)-[0-9a-f]{8}$|(?<=^local)-\d+$")
"""Suffix that makes the name of an agent unique."""


def host_name(agent: str) -> str:
    """The name of a host, for people, from that of its agent."""
    return _ATTEMPT.sub("", agent)


@dataclass(frozen=True, kw_only=True)
class RunWorkers:
    """The workers of a run.

    Attributes:
        agents: Name of each known rank's agent; empty if that is not known.
        names: Names of all agents that there ever were.
        colors: Colors of the page.
    """

    agents: dict[int, str]
    names: frozenset[str]
    colors: Colors

    @classmethod
    def of(cls, record: RunRecord, colors: Colors) -> RunWorkers:
        """The workers of the newest step, and all that have been placed."""
        measured = record.steps.workers[-1:]
        ranks = {int(rank) for _, workers in measured for rank in workers["rank"]}
        found = dict.fromkeys(ranks, "") | record.hosts
        joined = (event for event in record.events if event["event"] == "host-joined")
        return cls(
            agents={rank: found[rank] for rank in sorted(found)},
            names=frozenset(str(event.get("host")) for event in joined),
            colors=colors,
        )

    @cached_property
    def hosts(self) -> dict[str, list[int]]:
        """The ranks of each host, by the name of its agent; in the order of their first ranks."""
        found: dict[str, list[int]] = {}
        for rank, agent in self.agents.items():
            found.setdefault(agent, []).append(rank)
        return found

    @property
    def has_hosts(self) -> bool:
        """True if there are several hosts to tell apart."""
        return len({agent for agent in self.agents.values() if agent}) > 1

    @property
    def is_large(self) -> bool:
        """True if there are too many workers to draw each."""
        return len(self.agents) > FEW

    def host_of(self, rank: int) -> str:
        """The name of a rank's host, for people; empty unless there are several."""
        return host_name(self.agents.get(rank, "")) if self.has_hosts else ""

    def plain(self, words: str) -> str:
        """Words in which agents have the names of their hosts."""
        for agent in self.names:
            words = words.replace(agent, host_name(agent))
        return words

    def color(self, rank: int) -> str:
        """The color of a worker: the hue is the host's, the lightness the rank's; grey from the
        third host on, and from the fifth worker of a single host on.
        """
        return self._colors.get(rank, self.colors.ink3)

    @cached_property
    def _colors(self) -> dict[int, str]:
        shown = self.colors
        if not self.has_hosts:
            return dict(zip(self.agents, (shown.w0, shown.w1, shown.w2, shown.w3), strict=False))
        pairs = ((shown.w0, shown.w1), (shown.w2, shown.w3))
        found = {}
        for (first, last), ranks in zip(pairs, self.hosts.values(), strict=False):
            for place, rank in enumerate(ranks):
                found[rank] = mixed(first, last, place / max(1, len(ranks) - 1))
        return found
