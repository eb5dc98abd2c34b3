"""The simulated agents: the real state machine of each, and simulated workers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.core import actions, events
from holdfast.core.agent import AgentStateMachine
from holdfast.core.hangs import STOPPED_S
from holdfast.core.protocol import (
    CheckpointPart,
    DesiredState,
    Eviction,
    Failure,
    Probe,
    ResumePoint,
    Stage,
    Status,
)
from holdfast.core.reachability import PROBE_S
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.cuts import Cut, Cuts
from holdfast_bench.simulation.data_plane import DataPlane, Group, SimulatedWorker
from holdfast_bench.simulation.disk import SimulatedDisk
from holdfast_bench.simulation.network import LATE_S, SimulatedLink
from holdfast_bench.simulation.rest import Rest, SimulatedAgent
from holdfast_bench.simulation.timeline import Timeline

STALL_S: Final = 2.0
"""How long workers get nothing from each other before they report it."""
STAGE_S: Final = 0.001
"""How long a worker takes to copy its part of a checkpoint, and its host to write it:"""
WRITE_S: Final = 0.5
RECONNECT_S: Final = 0.1
"""An agent without a connection tries again this often."""


class Agents:
    """All agents of a cluster.

    Args:
        cluster: The cluster's parameters.
        heartbeat_s: How often each sends its status, seconds.
        timeline: Virtual time.
        tell_run: Called with events for the coordinator.
    """

    def __init__(
        self,
        cluster: Cluster,
        heartbeat_s: float,
        timeline: Timeline,
        tell_run: Callable[[events.RunEvent], None],
    ) -> None:
        self._cluster = cluster
        self._heartbeat_s = heartbeat_s
        self._timeline = timeline
        self._tell_run = tell_run
        self._chance = timeline.chance
        self._usual = SimulatedLink(cluster.delay_s, cluster.loss, cluster.late)
        self._agents: dict[str, SimulatedAgent] = {}
        self._names = itertools.count()
        self._cuts = Cuts()
        self.plane = DataPlane(timeline, cluster, self._cuts, self._begun, self._stalled)
        """What the workers do together."""
        self.rest = Rest(cluster, heartbeat_s, timeline, tell_run, self._tick)

    def living(self) -> list[str]:
        """The agents that run, by name."""
        return [name for name, agent in self._agents.items() if agent.alive]

    def living_workers(self) -> list[SimulatedWorker]:
        """All workers that run."""
        return [worker for name in self.living() for worker in self.workers_of(name)]

    def workers_of(self, name: str) -> list[SimulatedWorker]:
        """The workers that run on an agent."""
        return [worker for worker in self._agents[name].workers.values() if worker.alive]

    def disturb(self, name: str, trouble: SimulatedLink, heal_s: float) -> None:
        """Disturb the network of an agent for a while."""
        agent = self._agents[name]
        self.rest.touch(agent, self._timeline.now)
        agent.link = trouble
        self._timeline.after(heal_s, self._heal, agent)

    def cut_between(self, source: str, target: str, heal_s: float) -> None:
        """Lose all packets from one host to another for a while."""
        self._made(self._cuts.between(source, target), heal_s)

    def cut_off(self, names: Sequence[str], heal_s: float) -> None:
        """Cut hosts off from the coordinator and all other hosts for a while."""
        for name in names:
            self.disturb(
                name, SimulatedLink(self._cluster.delay_s, cut_to=True, cut_from=True), heal_s
            )
        self._made(self._cuts.around(names), heal_s)

    def accepts(self, name: str) -> bool:
        """True if the agent of a host accepts a connection of the coordinator."""
        agent = self._agents[name]
        return agent.alive and not agent.link.cut

    def newest_checkpoint(self) -> int:
        """The step of the newest checkpoint on any host that is up; 0 if there is none."""
        return max((self._agents[name].disk.newest for name in self.living()), default=0)

    def start(self, disk: SimulatedDisk | None = None) -> None:
        """A host joins, by default with an empty disk."""
        name = f"host-{next(self._names):04}"
        now = self._timeline.now
        capacity = self._cluster.capacity
        first = now + self._chance.uniform(0, 0.01)
        machine = AgentStateMachine(name, capacity, self._heartbeat_s, first, f"{name}:1")
        disk = SimulatedDisk() if disk is None else disk
        self._agents[name] = SimulatedAgent(name, machine, self._usual, now, now, disk)
        self._timeline.at(first, self._tell, name, events.Tick())

    def connect(self, name: str) -> None:
        """Connect an agent to the coordinator soon, if it is up and the network works."""
        delay_s = self._chance.uniform(0, RECONNECT_S)
        self._timeline.after(delay_s, self._connect, self._agents[name])

    def kill(self, name: str, back_s: float, *, loses_disk: bool) -> None:
        """Kill an agent and its workers; another one replaces it after a while, with its disk or an
        empty one.
        """
        agent = self._agents[name]
        if not agent.alive:
            return
        self._timeline.note(f"agent {name} dies")
        self.rest.touch(agent, self._timeline.now)
        self._end(agent)
        agent.disk.lose_drafts()
        gone = events.Disconnected(name)
        self._timeline.after(agent.link.draw_delay_s(self._chance), self._tell_run, gone)
        self._timeline.after(back_s, self.start, None if loses_disk else agent.disk)

    def leave(self, name: str) -> None:
        """Have a host leave the run; another one joins a while later."""
        self._timeline.note(f"{name} leaves")
        self._tell(name, events.LeaveRequested())

    def disk_of(self, name: str) -> SimulatedDisk:
        """The disk of an agent's host."""
        return self._agents[name].disk

    def kill_worker(self, worker: SimulatedWorker, cause: str, cap: int | None = None) -> None:
        """Kill a worker; its agent sees it in a millisecond."""
        self._timeline.note(f"rank {worker.rank} on {worker.host} dies: {cause}")
        self._die(worker)
        failure = Failure(cause=cause, cap=cap)
        exited = events.WorkerExited(worker.rank, worker.process, failure)
        self._timeline.after(0.001, self._tell, worker.host, exited)

    def hang_worker(self, worker: SimulatedWorker) -> None:
        """Hang a worker; its agent kills it once that is certain."""
        self._timeline.note(f"rank {worker.rank} on {worker.host} hangs")
        worker.hangs = True
        self.plane.leave(worker, self._timeline.now)
        self._timeline.after(STOPPED_S, self._end_hung, worker)

    def slow_down(self, worker: SimulatedWorker, cured_at: float) -> None:
        """Let a worker that trains be slow up to a time; the first member finds it at once."""
        if (group := worker.group) is None:
            return
        self._timeline.note(f"rank {worker.rank} on {worker.host} is slow")
        worker.cured_at = cured_at
        first = min(group.workers)
        eviction = Eviction(
            rank=worker.rank,
            reason="compute",
            step=group.step,
            threshold_s=1.0,
            step_s=self._cluster.step_s,
        )
        requested = events.EvictionRequested(group.generation, eviction)
        self._tell(group.workers[first].host, requested)

    def order(self, name: str, desired: DesiredState) -> None:
        """Send an agent its desired state."""
        link = self._agents[name].link
        if not link.cut_to and not link.loses(self._chance):
            ordered = events.DesiredStateReceived(desired)
            self._timeline.after(link.draw_delay_s(self._chance), self._tell, name, ordered)

    def _made(self, cut: Cut, heal_s: float) -> None:
        self.plane.on_cut()
        self._timeline.after(heal_s, self._undo, cut)

    def _undo(self, cut: Cut) -> None:
        self._cuts.heal(cut)
        self.plane.on_healed()

    def _rejoin(self, agent: SimulatedAgent) -> None:
        """Start an agent in place of one that was fenced."""
        self.start(agent.disk)
        name = next(reversed(self._agents))
        self._agents[name].delay = agent.delay
        self._cuts.rename(agent.name, name)

    def _connect(self, agent: SimulatedAgent) -> None:
        if agent.alive and agent.newest is not None:
            self.rest.touch(agent, self._timeline.now)
            self._report(agent, agent.newest, heartbeat=False)

    def _heal(self, agent: SimulatedAgent) -> None:
        agent.link = self._usual
        self.rest.touch(agent, self._timeline.now + LATE_S)
        self.connect(agent.name)

    def _tell(self, name: str, event: events.AgentEvent) -> None:
        agent = self._agents[name]
        if not agent.alive:
            return
        is_tick = isinstance(event, events.Tick)
        if not is_tick:
            self.rest.touch(agent, self._timeline.now)
        wanted = agent.machine.handle(event, self._timeline.now)
        if wanted and not is_tick:
            agent.machine.check_invariants()
        for action in wanted:
            if isinstance(action, actions.SendStatus):
                self._report(agent, action.status, heartbeat=is_tick)
            elif isinstance(action, actions.CheckpointAction):
                if (result := agent.disk.perform(action)) is not None:
                    delay_s = WRITE_S if isinstance(result, events.CheckpointPrepared) else 0.0
                    self._timeline.after(delay_s, self._tell, name, result)
            else:
                self._perform(agent, action)
        due = agent.machine.next_deadline()
        if due is not None and (agent.tick_at is None or due < agent.tick_at):
            agent.tick_at = due
            self._timeline.at(due, self._tick, agent, due)

    def _tick(self, agent: SimulatedAgent, due: float) -> None:
        if agent.alive and agent.tick_at == due and not self.rest.takes(agent):
            agent.tick_at = None
            self._tell(agent.name, events.Tick())

    def _report(self, agent: SimulatedAgent, status: Status, *, heartbeat: bool) -> None:
        link = agent.link
        agent.newest = status
        if link.cut_from or link.loses(self._chance):
            return
        if heartbeat and link.well:  # see `simulation.rest`
            delay_s = link.beat_delay_s(self._timeline.now)
        else:
            delay_s = link.draw_delay_s(self._chance)
        self._timeline.after(delay_s, self._tell_run, events.StatusReceived(status))

    def _perform(self, agent: SimulatedAgent, action: actions.AgentAction) -> None:
        match action:
            case actions.Abort(generation):
                for worker in list(agent.workers.values()):
                    self._abort(worker, generation)
            case actions.ForkWorker(rank, generation, process):
                worker = SimulatedWorker(rank, agent.name, process, newest_generation=generation)
                agent.workers[rank] = worker
                delay_s = self._cluster.fork_s * self._chance.uniform(1, 3)
                self._timeline.after(delay_s, self._halt, worker, generation)
            case actions.KillWorker(rank, process):
                self._die(agent.workers[rank])
                exited = events.WorkerExited(rank, process, Failure(cause="killed by its agent"))
                delay_s = self._chance.uniform(0.001, 0.1)
                self._timeline.after(delay_s, self._tell, agent.name, exited)
            case actions.ResumeWorkers(generation, start):
                self._timeline.note(
                    f"{agent.name} resumes in generation {generation} from step {start.step}"
                )
                for worker in list(agent.workers.values()):
                    self._release(worker, generation, start)
            case actions.ShutDownAgent():
                self._end(agent)
                delay_s = agent.delay.after(self._timeline.now - agent.joined_at)
                self._timeline.after(1.0 + delay_s, self._rejoin, agent)
            case actions.ProbeHost(probe):
                self._probe(agent, probe)
            case actions.RequestSave(generation, number):
                self.plane.request_save(generation, number)
            case actions.RequestStop():
                self.plane.request_stop(agent.name)

    def _probe(self, agent: SimulatedAgent, probe: Probe) -> None:
        other = self._agents[probe.host]
        is_reached = other.alive and not self._cuts.separate(agent.name, probe.host)
        delay_s = PROBE_S if other.alive and not is_reached else self._cluster.delay_s
        completed = events.ProbeCompleted(probe.number, is_reached)
        self._timeline.after(delay_s, self._tell, agent.name, completed)

    def _end(self, agent: SimulatedAgent) -> None:
        agent.alive = False
        for worker in list(agent.workers.values()):
            self._die(worker)

    # Workers.

    def _abort(self, worker: SimulatedWorker, generation: int) -> None:
        """Abort the generation of a worker; it halts when it notices, once."""
        if generation > worker.newest_generation:
            worker.newest_generation = generation
            self.plane.leave(worker, self._timeline.now)
            delay_s = self._chance.uniform(0.001, self._cluster.step_s)
            self._timeline.after(delay_s, self._halt, worker, generation)

    def _die(self, worker: SimulatedWorker) -> None:
        worker.alive = False
        self.plane.leave(worker, self._timeline.now)
        workers = self._agents[worker.host].workers
        if workers.get(worker.rank) is worker:
            del workers[worker.rank]

    def _end_hung(self, worker: SimulatedWorker) -> None:
        if worker.alive:
            self.kill_worker(worker, "hung")

    def _halt(self, worker: SimulatedWorker, generation: int) -> None:
        if worker.alive and not worker.hangs:
            reduced = self.plane.reduced_step(worker.host)
            address = f"{worker.host}:2"
            halted = events.WorkerHalted(
                worker.rank, generation, worker.committed, reduced, address
            )
            self._tell(worker.host, halted)

    def _release(self, worker: SimulatedWorker, generation: int, start: ResumePoint) -> None:
        if worker.rank in self._agents[worker.host].machine.standbys:
            worker.committed = None  # it was left behind
            self._probe_speed(worker, generation)
            return
        members = self._agents[worker.host].machine.members
        self.plane.check(generation, start, members.values())
        donor = start.donors.get(worker.rank)
        assert worker.committed is None or worker.committed <= start.step, "a step is taken back"
        if donor == worker.rank:
            self.plane.resume(worker, generation, start)
            self._timeline.after(0.001, self._join, worker, generation)
        else:
            worker.committed = None
            delay_s = self._chance.uniform(0.01, 0.1)
            self._timeline.after(delay_s, self._copy, worker, generation, start, donor)

    def _probe_speed(self, worker: SimulatedWorker, generation: int) -> None:
        """A worker on standby measures itself every few steps, until it is fast enough."""
        if not worker.alive or worker.hangs or worker.newest_generation != generation:
            return
        if self._timeline.now < worker.cured_at:
            self._timeline.after(3 * self._cluster.step_s, self._probe_speed, worker, generation)
        else:
            self._tell(worker.host, events.WorkerFit(worker.rank))

    def _copy(
        self, worker: SimulatedWorker, generation: int, start: ResumePoint, donor: int | None
    ) -> None:
        if not self._belongs(worker, generation):
            return
        source = None
        if donor is None:
            if start.step and start.step > self.newest_checkpoint():
                return  # its only host was lost meanwhile: another generation follows
        else:
            host = self._agents[worker.host].machine.members[donor]
            source = self._agents[host].workers.get(donor)
            if source is not None and source.committed == start.step - 1:  # it completes the step
                self._timeline.after(0.05, self._copy, worker, generation, start, donor)
                return
            if source is None or source.committed != start.step:
                return  # it failed or left meanwhile: another generation follows
        self.plane.copy(worker, start, source)
        self._join(worker, generation)

    def _join(self, worker: SimulatedWorker, generation: int) -> None:
        if self._belongs(worker, generation):
            members = self._agents[worker.host].machine.members
            self.plane.join(worker, generation, len(members))

    def _belongs(self, worker: SimulatedWorker, generation: int) -> bool:
        machine = self._agents[worker.host].machine
        running = (machine.generation, machine.stage) == (generation, Stage.RUN)
        return worker.alive and not worker.hangs and running and not machine.failed

    def _begun(self, group: Group) -> None:
        if self.plane.is_over(group):
            for worker in group.workers.values():
                finished = events.WorkerFinished(worker.rank, group.generation, {})
                self._timeline.after(0.001, self._tell, worker.host, finished)
            return
        due = group.step and group.step % self._cluster.checkpoint_every == 0
        if due or self.plane.save_requested(group):
            group.saves += 1
            hosts = Counter(worker.host for worker in group.workers.values())
            for worker in group.workers.values():
                part = CheckpointPart(number=group.saves, step=group.step, count=hosts[worker.host])
                staged = events.PartStaged(worker.rank, group.generation, part)
                self._timeline.after(STAGE_S, self._tell, worker.host, staged)

    def _stalled(self, group: Group) -> None:
        self._timeline.after(STALL_S, self._report_peers, group, group.step)

    def _report_peers(self, group: Group, step: int) -> None:
        """The workers of two hosts report that they get nothing from each other."""
        if not group.severed or not group.is_complete or group.step != step:
            return
        ranks = {worker.host: worker.rank for worker in group.workers.values()}
        for pair in group.severed:
            for host, peer in (pair, pair[::-1]):
                reported = events.PeerReported(group.generation, ranks[peer], group.has_broken)
                self._tell(host, reported)
        self._stalled(group)
