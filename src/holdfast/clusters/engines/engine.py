"""Engine: places the agents of one run, whatever owns the hosts.

    reserve(ask) ─▶ start(launch) … ─▶ places() ─▶ stop(name) … ─▶ close()

    PENDING ──▶ RUNNING ──▶ DRAINING ──▶ ENDED
                   └───────────────────────┘

An engine knows no worker and no step, and decides nothing: `core.replacing` says which agents to
start and to stop. Only the coordinator fences hosts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from holdfast.core.placement.replacing import AgentPlace
from holdfast.core.placement.shares import Needs
from holdfast.errors import JobError
from holdfast.job.resources import Resources
from holdfast.wire.token import Token

PLACED: Final = "placed"
"""A line that an agent prints to its engine, by standard output, when it has begun."""
TAKEN_AWAY: Final = "taken-away"
"""The same, when a signal has announced that its host will be taken away."""
OVER: Final = "over"
"""The same, when it ends because the run is over. The exit status of a command that ran it may be 0
when its host was lost.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """Request of a run for hosts.

    Attributes:
        agents: Number of agents, each on a host of its own.
        workers: Workers of each agent.
        resources: Resources of each worker.
    """

    agents: int
    workers: int
    resources: Resources

    @property
    def needs(self) -> Needs:
        """Needs of one agent on its host."""
        resources = self.resources
        return resources.needs(self.workers, resources.cpus)

    @property
    def of_agent(self) -> Resources:
        """Needs of one agent."""
        return self.resources.times(self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An agent to start.

    Attributes:
        name: Its name in the run, which is never used again.
        arguments: Of the command `holdfast`, which reads a token from its standard input, and ends
            when that is closed.
        token: The token, which can be used once. It goes into no argument, environment or record.
    """

    name: str
    arguments: tuple[str, ...]
    token: str = field(repr=False)


class Engine(Protocol):
    """Places agents for one run. Every method raises EngineError if it cannot do so."""

    @property
    def name(self) -> str:
        """Name by which `--on` calls it."""

    @property
    def peer(self) -> str:
        """The address of a host of the cluster, or nothing: the coordinator listens at the address
        of the route to it.
        """

    @property
    def num_hosts(self) -> int:
        """Number of its hosts, whether they are free or not."""

    def reserve(self, ask: ResourceRequest) -> str:
        """Reserve capacity for all agents at once; returns what is lacking now, or nothing."""

    def start(self, launch: Launch) -> None:
        """Start an agent on a host that is reserved, and do not wait for it."""

    def stop(self, name: str) -> None:
        """End an agent, and all that it has started."""

    def places(self) -> Mapping[str, AgentPlace]:
        """Every agent that was started, by its name."""

    def fileno(self) -> int:
        """A descriptor, readable when `places` has changed; it is until `places` is called."""

    def close(self) -> None:
        """End all agents and give back what was reserved."""


def tell_engine(word: str) -> None:
    """Tell the engine something, as a command that it has started."""
    with suppress(OSError):  # it is gone, which ends this process
        os.write(1, f"{word}\n".encode())


def begin(end: Callable[[], object]) -> None:
    """Tell the engine that this command has begun.

    Args:
        end: Called in a thread when the command is to end: the engine has closed the pipe, or is
            gone. The token has been read before.
    """
    tell_engine(PLACED)

    def await_end_of_input() -> None:
        while sys.stdin.read(1):
            pass
        end()

    threading.Thread(target=await_end_of_input, daemon=True).start()


def read_token(path: Path | None) -> Token:
    """The token in a file, or in the first line of standard input.

    Raises:
        JobError: There is none.
    """
    if path is None:
        return Token.parse(sys.stdin.readline().strip())
    try:
        return Token.parse(path.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"token file {path} cannot be read: {error}; copy it to this host") from None
    except JobError as error:
        raise JobError(f"token file {path}: {error}") from None
