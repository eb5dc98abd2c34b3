"""A simulated cluster: the real state machines of coordinator and agents, the rest simulated.

One seed fixes all that happens, so a failed run can be repeated. Time is virtual. The network
delays, loses and reorders messages. The coordinator can be killed between two actions, and then the
journal may or may not have kept the entry that was being written. Agents and workers are killed,
hang, and come back under other names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import actions, events
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Probe, Stage
from holdfast.core.reachability import PROBE_S
from holdfast_bench.simulation.agents import Agents
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.data_plane import SimulatedWorker
from holdfast_bench.simulation.disk import SimulatedDisk
from holdfast_bench.simulation.network import SimulatedLink
from holdfast_bench.simulation.timeline import Timeline


class Simulation:
    """One cluster and its history.

    Args:
        cluster: The cluster's parameters.
        policy: The coordinator's.
        seed: Fixes everything.

    Attributes:
        run: The coordinator's machine; None while it is down.
    """

    def __init__(self, cluster: Cluster, policy: RecoveryPolicy, seed: int) -> None:
        self.cluster = cluster
        self.policy = policy
        self._timeline = Timeline(seed)
        self._agents = Agents(cluster, policy.heartbeat_s, self._timeline, self._tell_run)
        self._journal: list[actions.JournalEntry] = []
        self._seen = 0
        self._crash_in: int | None = None
        self._crash_back_s = 0.0
        self._run_tick: float | None = None
        self.run: CoordinatorStateMachine | None = None
        self._start_coordinator()
        for _ in range(cluster.hosts):
            self._agents.start()

    @property
    def now(self) -> float:
        """Virtual time, seconds."""
        return self._timeline.now

    @property
    def log(self) -> list[str]:
        """The log, a line each: `time what`."""
        return self._timeline.log

    @property
    def chance(self) -> random.Random:
        """The source of randomness."""
        return self._timeline.chance

    @property
    def over(self) -> bool:
        """True if the run has ended, successfully or not."""
        return self.run is not None and self.run.stage == Stage.END

    @property
    def checkpoint(self) -> int:
        """The step of the newest checkpoint on any host that is up; 0 if there is none."""
        return self._agents.newest_checkpoint()

    @property
    def steps(self) -> int:
        """Steps that any worker has committed."""
        return len(self._agents.plane.chains) - 1

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call."""
        self._timeline.at(time, act, *arguments)

    def run_until(self, limit: float) -> None:
        """Let time pass until the run is over, or `limit` is reached."""
        while not self.over and self._timeline.step(limit):
            pass
        if not self.over:
            self._timeline.now = limit

    # Faults.

    def living_agents(self) -> list[str]:
        """Agents that run, by name."""
        return self._agents.living()

    def living_workers(self) -> list[SimulatedWorker]:
        """Workers that run."""
        return self._agents.living_workers()

    def workers_of(self, name: str) -> list[SimulatedWorker]:
        """The workers that run on an agent."""
        return self._agents.workers_of(name)

    def kill_worker(self, worker: SimulatedWorker) -> None:
        """Kill a worker; its agent sees it in a millisecond."""
        self._agents.kill_worker(worker, "SIGKILL")

    def exhaust_worker(self, worker: SimulatedWorker, cap: int) -> None:
        """Have a worker run out of memory, with the memory for `cap` shards."""
        self._agents.kill_worker(worker, "out of memory", cap)

    def hang_worker(self, worker: SimulatedWorker) -> None:
        """Hang a worker; its agent kills it once that is certain."""
        self._agents.hang_worker(worker)

    def slow_down(self, worker: SimulatedWorker, heal_s: float) -> None:
        """Slow down a worker for a while, so that the others train without it if they can."""
        self._agents.slow_down(worker, self.now + heal_s)

    def kill_agent(self, name: str, back_s: float, *, loses_disk: bool = False) -> None:
        """Kill an agent and its workers; another one replaces it after a while, with its disk or an
        empty one.
        """
        self._agents.kill(name, back_s, loses_disk=loses_disk)

    def leave(self, name: str) -> None:
        """Have a host leave the run; another one joins a while later."""
        self._agents.leave(name)

    def disk_of(self, name: str) -> SimulatedDisk:
        """The disk of an agent's host."""
        return self._agents.disk_of(name)

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the run to end after the current step, or at once."""
        self._timeline.note("abort requested" if at_once else "stop requested")
        self._tell_run(events.StopReceived(at_once=at_once))

    def scale(self, workers: int) -> None:
        """Ask for another number of workers; the coordinator refuses what the run cannot have."""
        if self.run is not None and not self.run.refuses_size(workers):
            self._timeline.note(f"scaled to {workers} workers")
            self._tell_run(events.ScaleRequested(workers))

    def cut(self, name: str, *, to: bool, back: bool, heal_s: float) -> None:
        """Lose all messages to an agent, or from it, for a while."""
        self._timeline.note(
            f"network of {name} cut{' to it' if to else ''}{' from it' if back else ''}"
        )
        trouble = SimulatedLink(self.cluster.delay_s, cut_to=to, cut_from=back)
        self._agents.disturb(name, trouble, heal_s)

    def disturb(self, name: str, *, loss: float, late: float, heal_s: float) -> None:
        """Lose and delay part of the messages to an agent, and from it, for a while."""
        self._timeline.note(f"network of {name} loses {loss:.0%} and delays {late:.0%}")
        self._agents.disturb(name, SimulatedLink(self.cluster.delay_s, loss, late), heal_s)

    def cut_between(self, source: str, target: str, heal_s: float) -> None:
        """Lose all packets from one host to another for a while; both reach the coordinator."""
        self._timeline.note(f"network from {source} to {target} cut")
        self._agents.cut_between(source, target, heal_s)

    def cut_off(self, names: Sequence[str], heal_s: float) -> None:
        """Cut hosts off from the coordinator and all other hosts for a while."""
        self._timeline.note(f"{', '.join(names)} cut off")
        self._agents.cut_off(names, heal_s)

    def starve(self, name: str, heal_s: float) -> None:
        """Let an agent do nothing for a while; its kernel accepts connections."""
        self._timeline.note(f"agent {name} is starved")
        starved = SimulatedLink(self.cluster.delay_s, cut_to=True, cut_from=True, answers=True)
        self._agents.disturb(name, starved, heal_s)

    def kill_coordinator(self, back_s: float) -> None:
        """Kill the coordinator; it comes back with the entries of its journal."""
        if self.run is None:
            return
        self._timeline.note("the coordinator dies")
        self.run = None
        self._agents.rest.stir(None)
        self._timeline.after(back_s, self._restart_coordinator)

    def crash_coordinator(self, after: int, back_s: float) -> None:
        """Kill the coordinator once it has performed `after` more actions."""
        self._crash_in = after
        self._crash_back_s = back_s

    # The coordinator.

    def _restart_coordinator(self) -> None:
        self._timeline.note("the coordinator is back")
        self._start_coordinator()
        for name in self.living_agents():
            self._agents.connect(name)

    def _start_coordinator(self) -> None:
        self.run = CoordinatorStateMachine(self.policy, self._journal, self.now)
        self._run_tick = None
        self._agents.rest.stir(self.run.heartbeats)
        self._wake_run()

    def _tell_run(self, event: events.RunEvent) -> None:
        if self.run is None:
            return
        stage = self.run.stage
        asked = self.run.handle(event, self.now)
        self._seen += 1
        if self._seen % self.cluster.check_every == 0:
            self.run.check_invariants()
        if self.run.stage != stage or not all(map(_is_probe, asked)):
            self._agents.rest.stir(self.run.heartbeats)
        for action in asked:
            if self._crashes_at(action):
                return
            match action:
                case actions.AppendToJournal(fact):
                    self._journal.append(fact)
                    self._timeline.note(f"recorded {fact}")
                case actions.SendDesiredState(host, desired):
                    self._agents.order(host, desired)
                case actions.ProbeHost(probe):
                    self._probe(probe)
        self._wake_run()

    def _probe(self, probe: Probe) -> None:
        is_reached = self._agents.accepts(probe.host)
        delay_s = self.cluster.delay_s if is_reached else PROBE_S
        completed = events.ProbeCompleted(probe.number, is_reached)
        self._timeline.after(delay_s, self._tell_run, completed)

    def _crashes_at(self, action: actions.RunAction) -> bool:
        """True if the coordinator dies while it performs this.

        A fact that it is recording is then kept, or it is not: a journal knows no halves.
        """
        if self._crash_in is None:
            return False
        self._crash_in -= 1
        if self._crash_in >= 0:
            return False
        self._crash_in = None
        if isinstance(action, actions.AppendToJournal):
            kept = self.chance.random() < 0.5
            self._timeline.note(
                f"recording {action.entry} is cut short: {'kept' if kept else 'lost'}"
            )
            if kept:
                self._journal.append(action.entry)
        self.kill_coordinator(self._crash_back_s)
        return True

    def _wake_run(self) -> None:
        assert self.run is not None
        due = self.run.next_deadline()
        if due is not None and (self._run_tick is None or due < self._run_tick):
            self._run_tick = max(due, self.now)
            self._timeline.at(self._run_tick, self._tick_run, self.run, self._run_tick)

    def _tick_run(self, run: CoordinatorStateMachine, due: float) -> None:
        if run is self.run and due == self._run_tick:
            self._run_tick = None
            self._tell_run(events.Tick())


def _is_probe(action: actions.RunAction) -> bool:
    """True if an action concerns a probe, and so no agent but the one that gets a message."""
    is_for_witness = isinstance(action, actions.SendDesiredState) and action.desired.probes
    return isinstance(action, actions.ProbeHost) or bool(is_for_witness)
