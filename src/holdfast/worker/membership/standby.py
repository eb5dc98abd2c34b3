"""Standby: how a worker that slows down the others leaves them, measures itself, and returns.

    members decide alike ─▶ the first requests it ─▶ generation without it ─▶ probes ─▶ fit ─▶ back

On standby it stays halted, except for its probes. Its state is then that of another step.
"""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic

from holdfast.arena.memory import Arena
from holdfast.core.balance.probes import Probes
from holdfast.core.balance.stragglers import Straggler
from holdfast.core.protocol import Eviction
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.agent_link import AgentLink


class StandbyMember:
    """One worker's way to standby and back.

    Args:
        agent: Its agent.
        arena: The host's shared memory.
    """

    def __init__(self, agent: AgentLink, arena: Arena) -> None:
        self._agent = agent
        self._arena = arena
        self._probes = Probes()

    @property
    def is_active(self) -> bool:
        """True if this worker is on standby."""
        return self._probes.is_on_standby

    @property
    def probe_at(self) -> float:
        """Time of the next probe, monotonic seconds; infinite if none is due."""
        return self._probes.due_at

    def request(self, straggler: Straggler, step: int) -> None:
        """Ask for a generation without a straggler, once in a generation."""
        eviction = Eviction(**asdict(straggler), step=step)
        self._agent.request_eviction(self._arena.generation, eviction)

    def begin(self, resume: ResumeMessage) -> None:
        """Note that a generation begins without this worker, which may compute probes in it."""
        assert resume.standby is not None
        self._arena.generation = resume.generation  # so that its end aborts a probe
        self._probes.begin(resume.standby, monotonic())

    def end(self) -> None:
        """Note that this worker is a member."""
        self._probes.end()

    def on_probed(self, seconds: float) -> None:
        """Take the time of a probe, one shard."""
        if self._probes.on_measured(seconds, monotonic()):
            self._agent.report_fit()
