"""Rest: heartbeats that would change nothing are not played one by one.

In a large cluster nearly all that happens is that agents say again what they said before. What
comes of that is known beforehand if, since an agent last reported,

- nothing has happened to it, so it would say the same,
- the coordinator has asked nobody for anything and stands where it stood, so it would answer the
  same, and that was nothing,
- its network was well, so the report would arrive, and when.

Then the coordinator notes when it heard the agent, and that is all. Such an agent is put to rest:
nobody ticks it and nobody waits for it. As soon as anything happens to it or to the coordinator, it
is woken. Each arrival that was left out is then noted in its order and at its time, the last report
is made by the agent's own machine at the time at which it would have made it, and one that would
still be under way is sent. So both machines are where they would be, to the last bit, except for
the numbers of reports, of which only the order counts. Chance is not asked for a heartbeat on a
network that is well, at rest or not, so it gives everybody else the same too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.actions import SendStatus
from holdfast.core.agent import AgentStateMachine
from holdfast.core.events import RunEvent, StatusReceived, Tick
from holdfast.core.heartbeats import Heartbeats
from holdfast.core.protocol import Status
from holdfast.testing.cluster import Cluster
from holdfast.testing.data_plane import SimulatedWorker
from holdfast.testing.network import SimulatedLink
from holdfast.testing.timeline import Timeline


@dataclass(slots=True, eq=False)
class SimulatedAgent:
    """A process that runs workers.

    Attributes:
        machine: What it decides with.
        link: Its way to the coordinator.
        touched_at: When something last happened to it or its network.
        tick_at: When it is to be woken, if that is arranged.
        newest: What it has last reported, and says again on a new connection.
        workers: Its living ones, by rank.
    """

    name: str
    machine: AgentStateMachine
    link: SimulatedLink
    touched_at: float
    alive: bool = True
    tick_at: float | None = None
    newest: Status | None = None
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)


class Rest:
    """Who is at rest.

    Args:
        cluster: Says whether anybody may rest.
        heartbeat_s: How often agents report, seconds.
        timeline: When things happen.
        tell_run: Called with what reaches the coordinator.
        tick: Called with an agent when a heartbeat is due again.
    """

    def __init__(
        self,
        cluster: Cluster,
        heartbeat_s: float,
        timeline: Timeline,
        tell_run: Callable[[RunEvent], None],
        tick: Callable[[SimulatedAgent, float], None],
    ) -> None:
        self._cluster, self._heartbeat_s, self._timeline = cluster, heartbeat_s, timeline
        self._tell_run, self._tick = tell_run, tick
        self._resting: dict[str, SimulatedAgent] = {}
        self._stirred_at = timeline.now
        self._heartbeats: Heartbeats | None = None

    def takes(self, agent: SimulatedAgent) -> bool:
        """Put an agent whose heartbeat is due to rest, if that makes no difference."""
        quiet_since = max(self._stirred_at, agent.touched_at)
        if (
            self._heartbeats is None
            or not self._cluster.rests
            or not agent.link.well
            or self._timeline.now < quiet_since + self._heartbeat_s
        ):
            return False
        self._heartbeats.rest(agent.name)
        self._resting[agent.name] = agent
        return True

    def touch(self, agent: SimulatedAgent, until: float) -> None:
        """Something happens to an agent or its network, and has all its effects `until` then."""
        agent.touched_at = max(agent.touched_at, until)
        if self._resting.pop(agent.name, None) is not None:
            self._wake(agent)
            self._tell_run(Tick())  # it has to wait for one more, so it may have to wake sooner

    def stir(self, heartbeats: Heartbeats | None) -> None:
        """The coordinator asks for something, or it comes or goes.

        Args:
            heartbeats: Where it notes whom it heard; None if it is gone.
        """
        self._stirred_at, self._heartbeats = self._timeline.now, heartbeats
        resting, self._resting = self._resting, {}
        for agent in resting.values():
            self._wake(agent)

    def _wake(self, agent: SimulatedAgent) -> None:
        now, link = self._timeline.now, agent.link
        assert agent.tick_at is not None, "it rests since its heartbeat was due"
        sent, due = [], agent.tick_at
        while due <= now:
            sent.append(due)
            due += self._heartbeat_s
        arrivals = [time + link.beat_delay_s(time) for time in sent]
        (report,) = agent.machine.handle(Tick(), sent[-1])
        assert isinstance(report, SendStatus)
        agent.newest = report.status
        if arrivals[-1] > now:
            self._timeline.at(arrivals.pop(), self._tell_run, StatusReceived(report.status))
        if self._heartbeats is not None:
            self._heartbeats.wake(agent.name, arrivals)
        agent.tick_at = due
        self._timeline.at(due, self._tick, agent, due)
