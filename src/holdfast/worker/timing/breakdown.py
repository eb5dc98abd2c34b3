"""Breakdown: what the workers of a run spend their time on, and what limits it.

Every worker knows the times of all, since they travel with the gradient. The first member writes
down what follows from them; the metrics of each host have the times themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.collectives.group import Group
from holdfast.core.balance.bottleneck import BottleneckFinder, RunBottleneck
from holdfast.core.balance.slow_links import SlowLinks
from holdfast.core.balance.slowdowns import Slowdowns, SlowReason
from holdfast.core.balance.times import PHASES, StepTimes
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS

_AGAIN: Final = 2
"""Times that another bottleneck must be found before it is written down."""


class Breakdown:
    """Findings of one worker in the times of all.

    Args:
        group: The members of the current generation.
        run_dir: Directory of the run.
        least_shards: Shards that the job must have: one for each worker that it may have.
        most_shards: Shards that the job may have; 0 if a worker's shards are merged.
        is_dynamic: True if measured times divide the shards.

    Attributes:
        bottleneck: Limit of the run in its last steps; None if that is not known yet.
    """

    def __init__(
        self,
        group: Group,
        run_dir: Path,
        *,
        least_shards: int,
        most_shards: int,
        is_dynamic: bool,
    ) -> None:
        self._group = group
        self._events = run_dir / EVENTS
        self._slowdowns = Slowdowns()
        self._links: SlowLinks | None = None
        self._least_shards = least_shards
        self._most_shards = most_shards
        self._is_dynamic = is_dynamic
        self._finder: BottleneckFinder  # of each generation
        self._members: tuple[int, ...] = ()
        self._ranks_of_hosts: tuple[tuple[int, ...], ...] = ()
        self._written = ""
        self._times_found = 0
        self.bottleneck: RunBottleneck | None = None

    @property
    def in_words(self) -> str | None:
        """Bottleneck of the run in its last steps."""
        found = self.bottleneck
        return None if found is None else f"{found.name}: {found.text}"

    def reason_of(self, rank: int) -> SlowReason | None:
        """Why a worker is slower than it was; None if it is not, or that is not known."""
        return self._slowdowns.reason_of(rank)

    def begin_generation(self, caps: Mapping[int, int]) -> None:
        """Begin with the members of a new generation.

        Args:
            caps: The most shards of ranks that have run out of memory.
        """
        self._members = self._group.members
        network = self._group.network
        self._links = None
        if network is not None:
            self._ranks_of_hosts = network.hosts.ranks
            self._links = SlowLinks([network.hosts.host_of(rank) for rank in self._members])
        self._finder = BottleneckFinder(
            has_network=network is not None,
            least_shards=self._least_shards,
            most_shards=self._most_shards,
            is_dynamic=self._is_dynamic,
            ranks=self._members,
            caps=caps,
        )

    def observe(self, step: int, times: Sequence[StepTimes], counts: Sequence[int]) -> None:
        """Take the times of a typical step, and write down what they show.

        Args:
            step: Steps committed.
            times: Times of each member.
            counts: Number of shards that each has computed.
        """
        slowdowns = self._slowdowns.observe(self._members, times, counts)
        links = self._links.observe(times) if self._links else []
        memory = max(each.memory_permille for each in times) / 1000
        found = self._finder.observe(times, counts, memory)
        is_new = found is not None and self._is_new(found)
        if self._group.member_index or not (slowdowns or links or is_new):
            return
        with EventLog(self._events) as log:
            for each in slowdowns:
                factor = round(each.factor, 2)
                if each.reason is None:
                    log.event("worker-recovered", rank=each.rank, step=step, factor=factor)
                else:
                    reason = each.reason.value
                    log.event(
                        "worker-slowed", rank=each.rank, step=step, factor=factor, reason=reason
                    )
            for link in links:
                ranks = self._ranks_of_hosts[link.host]
                factor = round(link.factor, 2)
                if link.is_slow:
                    log.event("link-slowed", ranks=ranks, step=step, factor=factor)
                else:
                    log.event("link-recovered", ranks=ranks, step=step)
            if found is not None and is_new:
                log.event(
                    "bottleneck-found",
                    step=step,
                    bottleneck=found.name,
                    share=round(found.share, 4),
                    text=found.text,
                )

    def _is_new(self, found: RunBottleneck) -> bool:
        """Note a bottleneck; returns whether it is to be written down."""
        is_same = self.bottleneck is not None and found.name == self.bottleneck.name
        self._times_found = self._times_found + 1 if is_same else 1
        self.bottleneck = found
        if found.name == self._written or (self._written and self._times_found < _AGAIN):
            return False
        self._written = found.name
        return True

    def row(self, times: Sequence[StepTimes], counts: Sequence[int]) -> dict[str, list[Any]]:
        """The times of a step for the metrics: one list per column, seconds, an entry a member."""
        phases = {
            name: [round(getattr(each, f"{name}_ns") / 1e9, 6) for each in times] for name in PHASES
        }
        used = {name: seconds for name, seconds in phases.items() if any(seconds)}
        if self._links is not None:
            used["link"] = [round(each.link_ns / 1e9, 6) for each in times]
        return {"rank": list(self._members), "shards": list(counts), **used}
