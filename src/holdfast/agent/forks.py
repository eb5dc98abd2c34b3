"""The agent's end of the fork server."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from holdfast.agent.spawn import Spawned
from holdfast.errors import HoldfastError
from holdfast.wire.channel import Channel
from holdfast.wire.messages import AnyMessage, Fork, Forked, Prepare, Ready

START_TIMEOUT_S: Final = 120.0
FORK_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0


def _never() -> bool:
    return False


class ForkServer:
    """A fork server; ends with the `with` block.

    Args:
        spawned: Its process.

    Attributes:
        channel: To it.
    """

    def __init__(self, spawned: Spawned) -> None:
        self._process, self._output = spawned.process, spawned.output
        self._pending: list[AnyMessage] = []
        self._ready = False
        self.channel = Channel(spawned.socket)

    def prepare(self, imports: Sequence[str], given_up: Callable[[], bool] = _never) -> None:
        """Have it import beforehand what its forks will need, where that is safe.

        Args:
            imports: References; see `tasks.reference`.
            given_up: Whether nobody wants it any more.

        Raises:
            HoldfastError: It did not come up, or was given up.
        """
        self._await_ready(given_up)
        if imports:
            doing = f"importing {', '.join(imports)}"
            self._send(Prepare(imports=tuple(imports)))
            self._await(Ready, START_TIMEOUT_S, doing, given_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, rank: int, config: str, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a worker; returns its process id and a pidfd, which is the caller's to close.

        Args:
            rank: Its rank.
            config: Passed to the entry.
            fds: The arena, the worker's socket, its log; copies go to the worker.

        Raises:
            HoldfastError: The fork server is gone.
        """
        self._await_ready()
        self._send(Fork(rank=rank, config=config), fds)
        forked = self._await(Forked, FORK_TIMEOUT_S, f"forking rank {rank}")
        assert isinstance(forked, Forked)
        return forked.pid, self.channel.take_fds(1)[0]

    def messages(self) -> list[AnyMessage]:
        """What it has to say that has not been read; does not wait."""
        found = self._pending + self.channel.poll(0)
        self._pending = []
        return found

    def close(self) -> None:
        """End it, and with it every worker that still runs."""
        self.channel.close()
        if not self._ready:  # it is importing, and would not notice for a while
            self._process.kill()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @property
    def died(self) -> str:
        """What to say where it has died."""
        return "the fork server died; see fork-server.log in the run's logs"

    def output(self) -> bytes:
        """What it has printed; once, after the end."""
        with os.fdopen(self._output, "rb") as file:
            file.seek(0)
            return file.read()

    def _send(self, message: AnyMessage, fds: Sequence[int] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except ConnectionError:
            raise HoldfastError(self.died) from None

    def _await_ready(self, given_up: Callable[[], bool] = _never) -> None:
        if not self._ready:
            self._await(Ready, START_TIMEOUT_S, "importing torch", given_up)
            self._ready = True

    def _await(
        self, kind: type, timeout_s: float, doing: str, given_up: Callable[[], bool] = _never
    ) -> AnyMessage:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self.channel.at_end:
            if given_up():
                self._process.kill()
                raise HoldfastError(f"the run was aborted while the fork server was {doing}")
            self._pending += self.channel.poll(0.1)
            for message in self._pending:
                if isinstance(message, kind):
                    self._pending.remove(message)
                    return message
        if self.channel.at_end:
            raise HoldfastError(self.died)
        self._process.kill()
        raise HoldfastError(
            f"the fork server was {doing} for more than {timeout_s:.0f} s and was ended; see "
            "fork-server.log in the run's logs"
        )
