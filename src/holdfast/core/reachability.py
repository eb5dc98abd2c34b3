"""Reachability: whether a host that fell silent is lost, or only slow.

A host whose processes are starved, or whose agent hangs, sends no heartbeats, but its kernel still
accepts connections. So a host that falls silent is probed with fresh connections before it counts
as lost: by the coordinator, and by another host, the witness.

| reaches the host | then |
|---|---|
| the coordinator | it is slow: it is probed again, and lost after `SLOW_LIMIT_S` of silence |
| the witness only | it is lost after another `timeout_s`: the way between them may come back |
| neither | it is lost |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.protocol import Probe, Status

PROBE_S: Final = 0.3
"""Time that a host may take to accept one of the connections of a probe."""
WITNESS_S: Final = 0.5
"""Wait for the answer of the witness after the start of a probe."""
SLOW_LIMIT_S: Final = 30.0
"""Time that a host that accepts connections may be silent."""
SETTLE_S: Final = 0.02
JOINT_LOSS_S: Final = 0.1
"""Hosts that are lost so shortly after each other are lost together."""


@dataclass(slots=True)
class _Suspicion:
    """A host that fell silent.

    Attributes:
        since: Time at which it was suspected.
        probe: The newest probe of it.
        began_at: Start of that probe.
        witness: The other host that probes it; empty if there is none.
        probe_at: Time at which to probe it again.
        lost_at: Time at which it is lost, unless it is heard or something new is known.
        is_reached: True if the coordinator reaches it; None while that is not known.
        is_witnessed: True if the witness does.
    """

    since: float
    probe: Probe
    began_at: float = 0.0
    witness: str = ""
    probe_at: float = math.inf
    lost_at: float = math.inf
    is_reached: bool | None = None
    is_witnessed: bool | None = None


class Reachability:
    """The hosts that are suspected.

    Args:
        timeout_s: Time that a host may be silent without being suspected, seconds.
        addresses: Addresses at which hosts accept connections that have not reported yet.
    """

    def __init__(self, timeout_s: float, addresses: Mapping[str, str]) -> None:
        self._timeout_s = timeout_s
        self._addresses = addresses
        self._suspicions: dict[str, _Suspicion] = {}
        self._number = 0

    @property
    def suspected(self) -> Collection[str]:
        """The hosts that are suspected."""
        return self._suspicions.keys()

    def probes_due(
        self, silent: Iterable[str], statuses: Mapping[str, Status], now: float
    ) -> list[tuple[Probe, str]]:
        """The probes to begin now, each with the name of its witness, if there is one.

        Args:
            silent: Hosts that are suspected from now on.
            statuses: The newest status of every host, in the order in which they joined.
        """
        # A host that is suspected already keeps the time since which it is.
        for host in silent:
            suspicion = self._suspicions.setdefault(host, _Suspicion(now, Probe(0, host, "")))
            suspicion.probe_at = min(suspicion.probe_at, now)
        return [
            self._begin(suspicion, statuses, now)
            for suspicion in self._suspicions.values()
            if suspicion.probe_at <= now and self._can_be_probed(suspicion, statuses, now)
        ]

    def probes_by(self, witness: str) -> tuple[Probe, ...]:
        """The probes whose result a host has not reported yet."""
        return tuple(
            suspicion.probe
            for suspicion in self._suspicions.values()
            if suspicion.witness == witness and suspicion.is_witnessed is None
        )

    def on_probed(self, number: int, now: float, *, is_reached: bool) -> None:
        """Note whether the coordinator reaches a host."""
        # The result of an older probe matches none, and is dropped.
        for suspicion in self._suspicions.values():
            if suspicion.probe.number == number:
                suspicion.is_reached = is_reached
                self._decide(suspicion, now)

    def on_heard(self, status: Status, now: float) -> None:
        """Note a status: its host is well, and may say what it reaches as a witness."""
        self._suspicions.pop(status.host, None)
        for suspicion in self._suspicions.values() if status.probed else ():
            is_news = suspicion.is_witnessed is None and suspicion.probe.number in status.probed
            if is_news and suspicion.witness == status.host:
                suspicion.is_witnessed = status.probed[suspicion.probe.number]
                self._decide(suspicion, now)

    def remove(self, host: str) -> None:
        """Suspect a host no longer."""
        self._suspicions.pop(host, None)

    def lost(self, now: float) -> list[str]:
        """Hosts that count as lost now."""
        if not any(suspicion.lost_at <= now for suspicion in self._suspicions.values()):
            return []
        # One is due: others that are about to be go with it, as one failure.
        soon = now + JOINT_LOSS_S
        return [host for host, each in self._suspicions.items() if each.lost_at <= soon]

    def next_deadline(self) -> float | None:
        """Time at which to ask for probes and lost hosts again."""
        waits = (min(each.probe_at, each.lost_at) for each in self._suspicions.values())
        return min((wait for wait in waits if wait < math.inf), default=None)

    def _address_of(self, host: str, statuses: Mapping[str, Status]) -> str:
        """Address at which a host accepts connections; empty if none is known."""
        status = statuses.get(host)
        return self._addresses.get(host, "") if status is None else status.probe_address

    def _can_be_probed(
        self, suspicion: _Suspicion, statuses: Mapping[str, Status], now: float
    ) -> bool:
        """True if a host has an address; if not, it is lost."""
        if not self._address_of(suspicion.probe.host, statuses):
            suspicion.probe_at = math.inf
            suspicion.lost_at = now
            return False
        return True

    def _begin(
        self, suspicion: _Suspicion, statuses: Mapping[str, Status], now: float
    ) -> tuple[Probe, str]:
        host = suspicion.probe.host
        # Higher than all numbers of a coordinator before this one, which counted likewise.
        self._number = max(self._number + 1, round(now * 1e6))
        suspicion.probe = Probe(self._number, host, self._address_of(host, statuses))
        suspicion.began_at = now
        # The host that joined last, of those that are not suspected themselves.
        suspicion.witness = next(
            (
                name
                for name in reversed(tuple(statuses))
                if name not in self._suspicions and statuses[name].probe_address
            ),
            "",
        )
        suspicion.is_reached = suspicion.is_witnessed = None
        suspicion.probe_at = math.inf
        # Its own result always comes, so nothing is decided before.
        suspicion.lost_at = suspicion.since + SLOW_LIMIT_S
        return suspicion.probe, suspicion.witness

    def _decide(self, suspicion: _Suspicion, now: float) -> None:
        """Decide from what is known of a host."""
        limit = suspicion.since + SLOW_LIMIT_S
        if suspicion.is_reached is None:
            return
        # The rows of the table above, in its order.
        if suspicion.is_reached:
            suspicion.probe_at = now + self._timeout_s
            suspicion.lost_at = limit
        elif suspicion.is_witnessed:
            suspicion.lost_at = min(suspicion.since + self._timeout_s, limit)
        elif suspicion.witness and suspicion.is_witnessed is None:
            # The answer of the witness is not here yet: its status may be on the way.
            suspicion.lost_at = max(suspicion.began_at + WITNESS_S, now + SETTLE_S)
        else:
            suspicion.lost_at = now + SETTLE_S
