"""Rest: heartbeats that would change nothing are not simulated one by one.

In a large cluster nearly all events are agents that repeat their status. The result of such a
heartbeat is known beforehand if, since the agent's last status,

- nothing has happened to the agent, so it would send the same,
- the coordinator has sent nothing and its stage is the same, so it would answer as it did: not,
- the agent's network worked, so the status would arrive, and when.

Then the coordinator only records when it heard the agent. Such an agent is put to rest: it has no
ticks, and no silence of it is suspected. As soon as anything happens to it or to the coordinator,
it is woken. Each arrival that was left out is then recorded in its order and at its time, the last
status is made by the agent's own machine at the time at which it would have made it, and one that
would still be under way is sent. So both machines are in the same state, to the last bit, except
for the numbers of statuses, of which only the order counts. No random number is drawn for a
heartbeat on a network that works, at rest or not, so all other draws are the same, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.actions import SendStatus
from holdfast.core.agent import AgentStateMachine
from holdfast.core.events import RunEvent, StatusReceived, Tick
from holdfast.core.heartbeats import Heartbeats
from holdfast.core.placement.replacing import RejoinDelay
from holdfast.core.protocol import Status
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.data_plane import SimulatedWorker
from holdfast_bench.simulation.disk import SimulatedDisk
from holdfast_bench.simulation.network import SimulatedLink
from holdfast_bench.simulation.timeline import Timeline


@dataclass(slots=True, eq=False)
class SimulatedAgent:
    """A process that runs workers.

    Attributes:
        machine: Its state machine.
        link: Its network to the coordinator.
        touched_at: When something last happened to it or its network.
        joined_at: When it was started.
        tick_at: When its next tick is due, if one is scheduled.
        disk: Its host's.
        newest: Its last status, which it sends again on a new connection.
        workers: Its living ones, by rank.
        delay: How long its host waits if it is fenced.
    """

    name: str
    machine: AgentStateMachine
    link: SimulatedLink
    touched_at: float
    joined_at: float
    disk: SimulatedDisk
    alive: bool = True
    tick_at: float | None = None
    newest: Status | None = None
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)
    delay: RejoinDelay = field(default_factory=RejoinDelay)


class Rest:
    """The agents at rest.

    Args:
        cluster: Says whether agents may rest.
        heartbeat_s: How often agents send their status, seconds.
        timeline: Virtual time.
        tell_run: Called with events for the coordinator.
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
        self._cluster = cluster
        self._heartbeat_s = heartbeat_s
        self._timeline = timeline
        self._tell_run = tell_run
        self._tick = tick
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
        self._heartbeats.pause(agent.name)
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
            heartbeats: Its record of heartbeats; None if it is down.
        """
        self._stirred_at = self._timeline.now
        self._heartbeats = heartbeats
        resting = self._resting
        self._resting = {}
        for agent in resting.values():
            self._wake(agent)

    def _wake(self, agent: SimulatedAgent) -> None:
        now = self._timeline.now
        link = agent.link
        assert agent.tick_at is not None, "it rests since its heartbeat was due"
        sent = []
        due = agent.tick_at
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
            self._heartbeats.resume(agent.name, arrivals)
        agent.tick_at = due
        self._timeline.at(due, self._tick, agent, due)
