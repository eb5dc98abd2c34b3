"""Slow links: finds a host whose gradients arrive later than before.

Each worker measures how long it waits for the partial sums of every other host once all have been
computed, and reports the host it waits for longest. The host that most of the long waits have in
common has the slow link. A host that sends late waits, too, since what acknowledges the data of
others is late, and often it alone does: the others find its data when they are done with the step
before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.balance.estimate import median
from holdfast.core.balance.times import StepTimes

SLOWER: Final = 3.0
"""Factor above the usual wait from which a wait is too long."""
LEAST_NS: Final = 5_000_000
"""A wait that is always usual: shorter ones vary too much."""
STEPS: Final = 3
"""Steps in a row after which a host counts as slow, or as fast again."""
LEAST_USUAL: Final = 5
"""Steps after which it is known what is usual."""
WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The link of a host that is slower than before, or as fast again.

    Attributes:
        host: Its place among the hosts.
        factor: Wait of the others for it, relative to the usual one.
        is_slow: True if it is slower.
    """

    host: int
    factor: float
    is_slow: bool


class SlowLinks:
    """Finds the slow links of one generation.

    Args:
        hosts: The host of each member, by its place.
    """

    def __init__(self, hosts: Sequence[int]) -> None:
        self._hosts = hosts
        self._usual: dict[int, deque[int]] = {host: deque(maxlen=WINDOW) for host in hosts}
        self._slow: Counter[int] = Counter()
        self._well: Counter[int] = Counter()
        self._named: set[int] = set()

    def observe(self, times: Sequence[StepTimes]) -> list[SlowLink]:
        """Take the times of each member in a step; returns what has changed with it."""
        # A single step tells nothing: each host is counted for, and against, by steps in a row.
        blamed = self._blamed(times)
        changes = []
        for host in self._usual:
            is_slow = host in blamed
            self._slow[host] = self._slow[host] + 1 if is_slow else 0
            self._well[host] = 0 if is_slow else self._well[host] + 1
            if host not in self._named and self._slow[host] >= STEPS:
                self._named.add(host)
                changes.append(SlowLink(host, blamed[host], is_slow=True))
            elif host in self._named and self._well[host] >= STEPS:
                self._named.remove(host)
                changes.append(SlowLink(host, 1.0, is_slow=False))
        return changes

    def _blamed(self, times: Sequence[StepTimes]) -> dict[int, float]:
        """The host that has delayed others, if any, and how long they waited, of what is usual."""
        # The longest wait of each host, and the host that it waited for.
        waits: dict[int, tuple[int, int]] = {}
        for receiver, each in zip(self._hosts, times, strict=True):
            waits[receiver] = max(waits.get(receiver, (0, 0)), (each.link_ns, each.link_host))
        slow = {}
        for receiver, (wait_ns, sender) in waits.items():
            # Only waits that are not too long move what is usual.
            usual = self._usual[receiver]
            known_ns = max(median(usual) if usual else 0, LEAST_NS)
            if len(usual) >= LEAST_USUAL and wait_ns >= SLOWER * known_ns:
                slow[receiver] = (sender, wait_ns / known_ns)
            else:
                usual.append(wait_ns)
        if not slow:
            return {}
        # One host alone waits too long: it sends late itself; see the module.
        if len(slow) == 1:
            return {receiver: factor for receiver, (_, factor) in slow.items()}
        # The host that appears in most of the long waits, on either side; then the longest wait.
        involved = Counter([*slow, *(sender for sender, _ in slow.values())])
        late = dict(slow.values())
        host = max(involved, key=lambda each: (involved[each], late.get(each, 0.0)))
        return {host: max(factor for _, factor in slow.values())}
