"""Agent link: how a worker waits between generations for messages of its agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from time import monotonic
from types import MappingProxyType

from holdfast.arena.memory import ABORT_POLL_S, Arena, Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.core.protocol import Eviction
from holdfast.errors import HoldfastError
from holdfast.wire.channel import Channel
from holdfast.wire.messages import (
    AnyMessage,
    EvictMessage,
    FitMessage,
    HaltedMessage,
    MemoryMessage,
    OpenTunnelMessage,
    PeerUnreachableMessage,
    ResumeMessage,
    ShutdownMessage,
    TunnelOpenedMessage,
)


class WorkerShutdown(BaseException):
    """The run is over for this worker; not an Exception, so that user code lets it pass."""


class SelfEviction(BaseException):
    """This worker must leave; not an Exception, so that user code lets it pass.

    Args:
        error: The reason.
    """

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class StopRequested(BaseException):
    """The run stops as it was asked to, and its state is safe; not an Exception, so that user code
    lets it pass.
    """


class AgentLink:
    """The connection of one worker to its agent.

    Args:
        status: Status of this worker.
        arena: Says which generation is the newest.
        channel: To the agent.
        address: Address at which this worker accepts connections of other hosts.
        tunnel: The address of the agent's tunnel for process groups, if it has one.
        numerics: Values that other hosts must have in common with this one.

    Attributes:
        tunnel: The argument.
    """

    def __init__(
        self,
        status: WorkerStatus,
        arena: Arena,
        channel: Channel,
        address: str = "",
        tunnel: str = "",
        numerics: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.tunnel = tunnel
        self._status = status
        self._arena = arena
        self._channel = channel
        self._address = address
        self._numerics = dict(numerics)
        self._eviction_in = 0
        self._memory: dict[int, int] = {}
        self._left: int | None = None

    @property
    def stop_requested(self) -> bool:
        """True if the run is to stop."""
        return self._arena.stop_requested

    def await_resume(self, committed: int | None) -> ResumeMessage:
        """Halt until all members of the newest generation have halted and are resumed.

        Args:
            committed: Steps committed in this worker's state; None if it has no state.

        Raises:
            WorkerShutdown: The run is over.
        """
        resume = self.await_resume_until(inf, committed)
        assert resume is not None
        return resume

    def await_resume_until(self, end: float, committed: int | None) -> ResumeMessage | None:
        """Do as `await_resume`, until `end`, monotonic seconds. A worker on standby may hear late
        of a generation that begins, and before it has halted in it.

        Raises:
            WorkerShutdown: The run is over.
        """
        before = self._status.enter(Phase.WAIT)
        halted_in = 0
        while True:
            # Another failure may announce a newer one while this worker waits: it halts again, for
            # that.
            if self._arena.newest_generation > halted_in:
                halted_in = self._arena.newest_generation
                self._channel.send(
                    HaltedMessage(
                        rank=self._status.rank,
                        generation=halted_in,
                        committed=committed,
                        address=self._address,
                        numerics=self._numerics,
                        left=self._left,
                    )
                )
            for message in self._channel.poll(ABORT_POLL_S):
                self._keep(message)
                if isinstance(message, ShutdownMessage):
                    raise WorkerShutdown
                if isinstance(message, ResumeMessage) and (
                    message.standby is not None or message.generation == halted_in
                ):
                    self._status.enter(before)
                    return message
            if self._channel.at_end:
                raise WorkerShutdown
            if monotonic() >= end:
                self._status.enter(before)
                return None

    def offer_memory(self, fd: int) -> None:
        """Have the agent hold memory of this worker, and give it to the others of this host. The
        descriptor is closed here: processes that this one forks would hold the memory, too.
        """
        self._channel.send(MemoryMessage(rank=self._status.rank), (fd,))
        os.close(fd)

    def left_memory(self) -> int | None:
        """Descriptor of the memory that the worker before this one has left; None without any.

        For a worker that has not halted yet: nothing but that memory can have come.
        """
        for message in self._channel.drain():
            self._keep(message)
        return self._memory.pop(self._status.rank, None)

    def note_left(self, step: int | None) -> None:
        """Report from now on which state this worker continues from, if no other one has any.

        Args:
            step: Steps committed in it; None if there is none.
        """
        self._left = step

    def take_memory(self) -> dict[int, int]:
        """Descriptors of the memory of all other workers of this host, by rank, as of the newest
        generation. The caller closes them.
        """
        taken = self._memory
        self._memory = {}
        return taken

    def _keep(self, message: AnyMessage) -> None:
        """Keep the descriptor that comes with the memory of a worker."""
        if isinstance(message, MemoryMessage):
            (fd,) = self._channel.take_fds(1)
            if (before := self._memory.get(message.rank)) is not None:
                os.close(before)
            self._memory[message.rank] = fd

    def request_eviction(self, generation: int, eviction: Eviction) -> None:
        """Ask for a generation without a worker, once in a generation."""
        if self._eviction_in < generation:
            self._eviction_in = generation
            self._channel.send(EvictMessage(generation=generation, eviction=eviction))

    def report_fit(self) -> None:
        """Report that this worker, which is on standby, is fast again."""
        self._channel.send(FitMessage(rank=self._status.rank))

    def report_peer(self, generation: int, peer: int, *, is_broken: bool) -> None:
        """Report a worker of another host that does not send what is awaited."""
        self._channel.send(
            PeerUnreachableMessage(generation=generation, peer=peer, is_broken=is_broken)
        )

    def open_tunnel(self, wanted: OpenTunnelMessage) -> None:
        """Have the agent carry connections of process groups to other hosts.

        Raises:
            Aborted: The generation is over.
            OSError: It cannot, for example because a port is in use.
        """
        self._channel.send(wanted)
        while not self._channel.at_end:
            self._arena.check_abort()
            for message in self._channel.poll(ABORT_POLL_S):
                if isinstance(message, TunnelOpenedMessage):
                    if message.error:
                        raise OSError(message.error)  # another start takes other ports
                    return
        raise WorkerShutdown

    def await_shutdown(self) -> None:
        """Wait until the others have finished too.

        Raises:
            Aborted: They need this worker once more.
        """
        self._status.enter(Phase.LEFT)
        while not self._channel.at_end:
            self._arena.check_abort()
            if any(
                isinstance(message, ShutdownMessage) for message in self._channel.poll(ABORT_POLL_S)
            ):
                return
