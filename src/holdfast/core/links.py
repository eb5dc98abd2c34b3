"""Links: hosts that send heartbeats, and whose workers cannot reach each other.

Workers report to their agent that a connection to a worker of another host has broken, or that
nothing has come from there for a while. The agent probes that worker (`PeerProbes`), and reports
what it finds with its status. The coordinator (`Links`) waits for the reports of others, and for
what heartbeats say of the same hosts, before it decides:

| between two hosts | then |
|---|---|
| no connection can be made | the host with most such links is fenced, or the last that joined |
| a connection has broken | all workers connect again, in a new generation |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.protocol import Probe, Status

GRACE_S: Final = 1.0
"""Wait for others after the first report. A host that is cut off is lost by then."""


@dataclass(slots=True)
class _Peer:
    """Another host, as an agent knows it.

    Attributes:
        probe: The newest probe, while there is no result.
        has_broken: True if a connection to it has broken.
    """

    probe: Probe | None = None
    has_broken: bool = False


class PeerProbes:
    """The hosts that workers of one agent have reported in a generation.

    Attributes:
        severed: Defined in `Status`.
    """

    def __init__(self) -> None:
        self.severed: dict[str, bool] = {}
        self._peers: dict[str, _Peer] = {}
        self._number = 0

    def clear(self) -> None:
        """Forget all: another generation begins."""
        self.severed.clear()
        self._peers.clear()

    def on_reported(self, host: str, address: str, *, is_broken: bool) -> list[Probe]:
        """Note that a worker has reported one of another host; returns the probe to begin, if any.

        Args:
            host: The other host.
            address: Address of the other worker.
            is_broken: True if their connection has broken.
        """
        # One probe at a time: its result answers all reports that come meanwhile.
        peer = self._peers.setdefault(host, _Peer())
        peer.has_broken |= is_broken
        if peer.probe is not None or not address:
            return []
        self._number -= 1  # the coordinator's are positive
        peer.probe = Probe(self._number, host, address)
        return [peer.probe]

    def on_probed(self, number: int, *, is_reached: bool) -> bool:
        """Note the result of a probe; returns whether `severed` has changed."""
        before = dict(self.severed)
        for host, peer in self._peers.items():
            if peer.probe is not None and peer.probe.number == number:
                peer.probe = None
                # Reached, and no connection broke: the other worker is only slow.
                self.severed.pop(host, None)
                if peer.has_broken or not is_reached:
                    self.severed[host] = is_reached
        return self.severed != before


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDecision:
    """Decision about links.

    Attributes:
        fence: The hosts to fence; none to open a new generation only.
        reason: Cause, in words.
    """

    fence: tuple[str, ...]
    reason: str


class Links:
    """The links between hosts of the current generation."""

    def __init__(self) -> None:
        self._severed: dict[str, Mapping[str, bool]] = {}
        self._decide_at: float | None = None

    def clear(self) -> None:
        """Forget all: another generation begins."""
        self._severed.clear()
        self._decide_at = None

    def on_status(self, status: Status, now: float) -> None:
        """Note which links a member reports."""
        if status.severed:
            self._severed[status.host] = status.severed
            self._decide_at = now + GRACE_S if self._decide_at is None else self._decide_at
        elif self._severed.pop(status.host, None) is not None and not self._severed:
            self._decide_at = None

    def next_deadline(self) -> float | None:
        """Time at which to ask for a decision; None if no link is reported."""
        return self._decide_at

    def decide(
        self, hosts: Iterable[str], suspected: Collection[str], now: float
    ) -> LinkDecision | None:
        """Decide what to do now; None for nothing.

        Args:
            hosts: In the order in which they joined.
            suspected: Hosts that fell silent, of which heartbeats decide.
            now: The time.
        """
        if self._decide_at is None or now < self._decide_at:
            return None
        # If nothing is decided now, the reports are looked at again after another wait.
        self._decide_at = now + GRACE_S
        trusted = [host for host in hosts if host not in suspected]
        reports = [
            (frozenset((host, peer)), is_reached)
            for host, peers in self._severed.items()
            for peer, is_reached in peers.items()
            if host in trusted and peer in trusted
        ]
        # A pair is severed if either side cannot reach the other.
        severed = {pair for pair, is_reached in reports if not is_reached}
        if severed:
            fence = _cover(severed, trusted)
            peers = sorted(frozenset[str]().union(*severed) - set(fence))
            reason = f"cannot reach {', '.join(peers or fence)}"
            return LinkDecision(fence=fence, reason=reason)
        # All hosts reach each other, so new connections will do.
        if reports:
            one, other = sorted(reports[0][0])
            return LinkDecision(fence=(), reason=f"the connection of {one} and {other} broke")
        return None


def _cover(severed: Collection[frozenset[str]], hosts: Sequence[str]) -> tuple[str, ...]:
    """Hosts without which no link is severed: again and again the one with most such links."""
    fence = list[str]()
    left = set(severed)
    while left:
        # Among hosts with as many such links the one that joined last goes.
        links = Counter(host for pair in left for host in pair)
        fence.append(max(hosts, key=lambda host: (links[host], hosts.index(host))))
        left = {pair for pair in left if fence[-1] not in pair}
    return tuple(fence)
