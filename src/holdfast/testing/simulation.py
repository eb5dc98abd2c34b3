"""A simulated cluster: the real machines of coordinator and agents, everything else made up.

One seed fixes all that happens, so a run that went wrong can be run again. Time is virtual: a heap
of what is to happen, in order. The network delays, loses and overtakes, and can be cut in one
direction; the coordinator may die in the middle of what it does, and then the journal may or may
not have kept what was being recorded; agents and workers die, hang and come back under other names.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core import actions, events
from holdfast.core.hangs import STOPPED_S
from holdfast.core.protocol import Failure, Stage, Start
from holdfast.core.run import Policy, Run
from holdfast.core.supervisor import Supervisor
from holdfast.testing.data_plane import DataPlane, Group, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is simulated.

    Attributes:
        hosts: How many, each with room for `room` workers.
        num_steps, step_s: Length of the run, and of a step in seconds.
        delay_s: A message takes half of this and some more.
        loss, late: Part of the messages that get lost, and that come up to 3 s late.
        fork_s: What a new worker takes to stand ready.
        checkpoint_every: Steps between checkpoints.
        check_every: Events between two looks at the coordinator's invariants.
    """

    hosts: int
    room: int
    num_steps: int
    step_s: float = 1.0
    delay_s: float = 0.002
    loss: float = 0.0
    late: float = 0.0
    fork_s: float = 0.05
    checkpoint_every: int = 50
    check_every: int = 1


@dataclass(slots=True, eq=False)
class _Agent:
    machine: Supervisor
    alive: bool = True
    cut_to: bool = False
    cut_from: bool = False
    tick_at: float | None = None
    workers: dict[int, Worker] = field(default_factory=dict)


class Simulation:
    """One cluster and its history.

    Args:
        cluster: What it is made of.
        policy: The coordinator's.
        seed: Fixes everything.

    Attributes:
        now: Virtual time, seconds.
        log: What happened, a line each: `time what`.
        run: The coordinator's machine; None while it is down.
    """

    def __init__(self, cluster: Cluster, policy: Policy, seed: int) -> None:
        self.cluster, self.policy = cluster, policy
        self.chance = random.Random(seed)  # chance, not secrecy
        self.now, self.log = 0.0, list[str]()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._plane = DataPlane(self.chance, cluster.num_steps, cluster.step_s, self._begun)
        self._journal: list[actions.Fact] = []
        self._agents: dict[str, _Agent] = {}
        self._names = itertools.count()
        self._seen = 0
        self._crash_in: int | None = None
        self._crash_back_s = 0.0
        self._run_tick: float | None = None
        self.run: Run | None = Run(policy, [], 0.0)
        self._wake_run()
        for _ in range(cluster.hosts):
            self.start_agent()

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.run is not None and self.run.stage == Stage.END

    @property
    def steps(self) -> int:
        """Steps that were committed by somebody."""
        return len(self._plane.chains) - 1

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Have something happen at a time."""
        heapq.heappush(self._queue, (time, next(self._order), act, arguments))

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Have something happen after a while."""
        self.at(self.now + delay, act, *arguments)

    def run_until(self, limit: float) -> None:
        """Let time pass until the run is over, or `limit` is reached."""
        while self._queue and not self.over and self._queue[0][0] <= limit:
            self.now, _, act, arguments = heapq.heappop(self._queue)
            act(*arguments)
        if not self.over:
            self.now = limit

    # Faults.

    def living_agents(self) -> list[str]:
        """Agents that run, by name."""
        return [name for name, agent in self._agents.items() if agent.alive]

    def living_workers(self) -> list[Worker]:
        """Workers that run."""
        return [
            worker
            for name in self.living_agents()
            for worker in self._agents[name].workers.values()
            if worker.alive
        ]

    def kill_worker(self, worker: Worker, cause: str = "SIGKILL") -> None:
        """End one; its agent sees it in a millisecond."""
        self._note(f"rank {worker.rank} on {worker.host} dies: {cause}")
        self._die(worker)
        exited = events.Exited(worker.rank, worker.process, Failure(cause=cause))
        self.after(0.001, self._tell_agent, worker.host, exited)

    def hang_worker(self, worker: Worker) -> None:
        """Have one do nothing any more; its agent ends it once that is certain."""
        self._note(f"rank {worker.rank} on {worker.host} hangs")
        worker.hangs = True
        self._plane.leave(worker, self.now)
        self.after(STOPPED_S, self._end_hung, worker)

    def stop(self) -> None:
        """Ask for the end of the run, after the step in hand."""
        self._note("a stop is asked for")
        self._tell_run(events.StopAsked())

    def kill_agent(self, name: str, back_s: float) -> None:
        """End an agent and with it its workers; another takes its place after a while."""
        agent = self._agents[name]
        if not agent.alive:
            return
        self._note(f"agent {name} dies")
        agent.alive = False
        for worker in list(agent.workers.values()):
            self._die(worker)
        self.after(self._delay(), self._tell_run, events.Disconnected(name))
        self.after(back_s, self.start_agent)

    def start_agent(self) -> None:
        """A host joins."""
        name = f"host-{next(self._names):04}"
        machine = Supervisor(name, self.cluster.room, self.policy.heartbeat_s, self.now)
        self._agents[name] = _Agent(machine)
        self.after(self.chance.uniform(0, 0.01), self._tell_agent, name, events.Tick())

    def cut(self, name: str, *, to: bool, back: bool, heal_s: float) -> None:
        """Lose all messages to an agent, or from it, for a while."""
        agent = self._agents[name]
        self._note(f"network of {name} cut{' to it' if to else ''}{' from it' if back else ''}")
        agent.cut_to, agent.cut_from = to, back
        self.after(heal_s, self._heal, agent)

    def kill_coordinator(self, back_s: float) -> None:
        """End the coordinator; it comes back with what its journal kept."""
        if self.run is None:
            return
        self._note("the coordinator dies")
        self.run = None
        self.after(back_s, self._restart_coordinator)

    def crash_coordinator(self, after: int, back_s: float) -> None:
        """End the coordinator once it has done `after` more of what its machine asks for."""
        self._crash_in, self._crash_back_s = after, back_s

    # The coordinator and its network.

    def _restart_coordinator(self) -> None:
        self._note("the coordinator is back")
        self.run, self._run_tick = Run(self.policy, self._journal, self.now), None
        self._wake_run()

    def _tell_run(self, event: events.RunEvent) -> None:
        if self.run is None:
            return
        wanted = self.run.handle(event, self.now)
        self._seen += 1
        if self._seen % self.cluster.check_every == 0:
            self.run.check_invariants()
        for action in wanted:
            if self._crashes_at(action):
                return
            if isinstance(action, actions.Record):
                self._journal.append(action.fact)
                self._note(f"recorded {action.fact}")
            else:
                self._send_orders(action)
        self._wake_run()

    def _crashes_at(self, action: actions.RunAction) -> bool:
        """Whether the coordinator dies while it performs this; what it records may be kept."""
        if self._crash_in is None:
            return False
        self._crash_in -= 1
        if self._crash_in >= 0:
            return False
        self._crash_in = None
        if isinstance(action, actions.Record) and self.chance.random() < 0.5:
            self._journal.append(action.fact)
        self.kill_coordinator(self._crash_back_s)
        return True

    def _wake_run(self) -> None:
        assert self.run is not None
        due = self.run.next_deadline()
        if due is not None and (self._run_tick is None or due < self._run_tick):
            self._run_tick = max(due, self.now)
            self.at(self._run_tick, self._tick_run, self.run, self._run_tick)

    def _tick_run(self, run: Run, due: float) -> None:
        if run is self.run and due == self._run_tick:
            self._run_tick = None
            self._tell_run(events.Tick())

    def _send_orders(self, send: actions.Send) -> None:
        agent = self._agents[send.host]
        if not agent.cut_to and self.chance.random() >= self.cluster.loss:
            ordered = events.Ordered(send.orders)
            self.after(self._delay(), self._tell_agent, send.host, ordered)

    def _delay(self) -> float:
        late_s = self.chance.uniform(0, 3) if self.chance.random() < self.cluster.late else 0.0
        return late_s + self.cluster.delay_s * (0.5 + self.chance.expovariate(2))

    def _heal(self, agent: _Agent) -> None:
        agent.cut_to = agent.cut_from = False

    # Agents and their workers.

    def _tell_agent(self, name: str, event: events.AgentEvent) -> None:
        agent = self._agents[name]
        if not agent.alive:
            return
        wanted = agent.machine.handle(event, self.now)
        if wanted and not isinstance(event, events.Tick):
            agent.machine.check_invariants()
        for action in wanted:
            self._perform(name, agent, action)
        due = agent.machine.next_deadline()
        if due is not None and (agent.tick_at is None or due < agent.tick_at):
            agent.tick_at = due
            self.at(due, self._tick_agent, name, due)

    def _tick_agent(self, name: str, due: float) -> None:
        agent = self._agents[name]
        if agent.tick_at == due:
            agent.tick_at = None
            self._tell_agent(name, events.Tick())

    def _perform(self, name: str, agent: _Agent, action: actions.AgentAction) -> None:
        match action:
            case actions.Report(status):
                if not agent.cut_from and self.chance.random() >= self.cluster.loss:
                    self.after(self._delay(), self._tell_run, events.Reported(status))
            case actions.Abort(generation):
                for worker in list(agent.workers.values()):
                    self._call_out(worker, generation)
            case actions.Fork(rank, generation, process):
                worker = agent.workers[rank] = Worker(rank, name, process, heard=generation)
                delay = self.cluster.fork_s * self.chance.uniform(1, 3)
                self.after(delay, self._park, worker, generation)
            case actions.Kill(rank, process):
                self._die(agent.workers[rank])
                exited = events.Exited(rank, process, Failure(cause="killed by its agent"))
                self.after(self.chance.uniform(0.001, 0.1), self._tell_agent, name, exited)
            case actions.Release(generation, start):
                self._note(f"{name} goes on in generation {generation} from step {start.step}")
                for worker in list(agent.workers.values()):
                    self._release(worker, generation, start)
            case actions.Leave():
                agent.alive = False
                for worker in list(agent.workers.values()):
                    self._die(worker)
                self.after(1.0, self.start_agent)
            case actions.RequestStop():
                self._plane.request_stop(name)

    def _call_out(self, worker: Worker, generation: int) -> None:
        """Let a worker know of a generation; it parks once it comes to look, and once only."""
        if generation > worker.heard:
            worker.heard = generation
            self._plane.leave(worker, self.now)
            delay = self.chance.uniform(0.001, self.cluster.step_s)
            self.after(delay, self._park, worker, generation)

    def _die(self, worker: Worker) -> None:
        worker.alive = False
        self._plane.leave(worker, self.now)
        workers = self._agents[worker.host].workers
        if workers.get(worker.rank) is worker:
            del workers[worker.rank]

    def _end_hung(self, worker: Worker) -> None:
        if worker.alive:
            self.kill_worker(worker, "hung")

    def _park(self, worker: Worker, generation: int) -> None:
        if worker.alive and not worker.hangs:
            rooted = self._plane.rooted(worker.host)
            parked = events.Parked(worker.rank, generation, worker.committed, rooted)
            self._tell_agent(worker.host, parked)

    def _release(self, worker: Worker, generation: int, start: Start) -> None:
        donor = start.donors.get(worker.rank)
        assert worker.committed is None or worker.committed <= start.step, "a step is taken back"
        if donor == worker.rank:
            self._plane.settle(worker, start)
            self.after(0.001, self._join, worker, generation)
        else:
            worker.committed = None
            self.after(self.chance.uniform(0.01, 0.1), self._copy, worker, generation, start, donor)

    def _copy(self, worker: Worker, generation: int, start: Start, donor: int | None) -> None:
        if not self._belongs(worker, generation):
            return
        giver = None
        if donor is not None:
            found = [w for w in self.living_workers() if w.rank == donor]
            giver = next((w for w in found if w.committed == start.step), None)
            if giver is None:
                return  # it died meanwhile, or left: another generation is on its way
        self._plane.copy(worker, start, giver)
        self._join(worker, generation)

    def _join(self, worker: Worker, generation: int) -> None:
        if self._belongs(worker, generation):
            members = self._agents[worker.host].machine.members
            self._plane.join(worker, generation, len(members), self.now)

    def _belongs(self, worker: Worker, generation: int) -> bool:
        machine = self._agents[worker.host].machine
        running = (machine.generation, machine.stage) == (generation, Stage.RUN)
        return worker.alive and not worker.hangs and running and not machine.failed

    def _begun(self, group: Group) -> None:
        if self._plane.is_over(group):
            for worker in group.workers.values():
                finished = events.Finished(worker.rank, group.generation, {})
                self.after(0.001, self._tell_agent, worker.host, finished)
            return
        if group.step and group.step % self.cluster.checkpoint_every == 0:
            self.after(0.5, self._tell_run, events.CheckpointCommitted(group.step))
        self.at(group.end_at, lambda: self._plane.end_step(group, self.now))

    def _note(self, what: str) -> None:
        self.log.append(f"{self.now:.6f} {what}")


def storm(simulation: Simulation, faults: int, until: float, kinds: Sequence[str]) -> None:
    """Strike at random until a time; `kinds` are the names of the faults to choose from."""

    def strike() -> None:
        chance, agents = simulation.chance, simulation.living_agents()
        workers = simulation.living_workers()
        kind = chance.choice(kinds)
        if kind == "worker" and workers:
            simulation.kill_worker(chance.choice(workers))
        elif kind == "hang" and workers:
            simulation.hang_worker(chance.choice(workers))
        elif kind == "agent" and agents:
            simulation.kill_agent(chance.choice(agents), chance.uniform(0.1, 5))
        elif kind == "coordinator":
            simulation.kill_coordinator(chance.uniform(0.1, 3))
        elif kind == "crash":
            simulation.crash_coordinator(chance.randrange(6), chance.uniform(0.1, 3))
        elif kind == "network" and agents:
            to = chance.random() < 0.7
            name, heal_s = chance.choice(agents), chance.uniform(0.1, 10)
            simulation.cut(name, to=to, back=not to or chance.random() < 0.7, heal_s=heal_s)

    for _ in range(faults):
        simulation.at(simulation.chance.uniform(0, until), strike)
