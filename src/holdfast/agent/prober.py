"""Prober: accepts the probes of others, and probes hosts for the coordinator."""

from __future__ import annotations

import os
import queue
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from holdfast.core.events import ProbeCompleted
from holdfast.core.protocol import Probe
from holdfast.wire.probe import accepts

BACKLOG: Final = 1024
"""Connections that the kernel accepts while the agent does not run."""
MAX_PROBES: Final = 16
"""Probes at a time."""


class Prober:
    """The prober of one agent; readable, for `select`, when a probe is completed.

    Args:
        interface: The address to accept probes on; empty in a run on one host.

    Attributes:
        address: Address at which it accepts them, as `address:port`; empty if it does not.
        listener: The socket on which it does.
    """

    def __init__(self, interface: str) -> None:
        self.listener: socket.socket | None = None
        self.address = ""
        if interface:
            # The kernel accepts connections while this process gets no processor time, so a host
            # that is only busy passes for one that is up.
            family = socket.AF_INET6 if ":" in interface else socket.AF_INET
            self.listener = socket.create_server((interface, 0), family=family, backlog=BACKLOG)
            self.listener.setblocking(False)
            self.address = f"{interface}:{self.listener.getsockname()[1]}"
        self._threads = ThreadPoolExecutor(MAX_PROBES, "holdfast-probe")
        self._completed = queue.SimpleQueue[ProbeCompleted]()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._wake

    def start(self, probe: Probe) -> None:
        """Begin a probe."""
        self._threads.submit(self._probe, probe)

    def completed(self) -> list[ProbeCompleted]:
        """The probes that were completed since the last call."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return [self._completed.get() for _ in range(self._completed.qsize())]

    def accept(self) -> None:
        """Close the connections that were accepted: to have been is all that a probe asks for."""
        assert self.listener is not None
        with suppress(OSError):  # none is left, or one has ended already
            for _ in range(BACKLOG):
                self.listener.accept()[0].close()

    def close(self) -> None:
        """Accept no more, and end all probes."""
        if self.listener is not None:
            self.listener.close()
        self._threads.shutdown(cancel_futures=True)
        os.close(self._wake)

    def _probe(self, probe: Probe) -> None:
        self._completed.put(ProbeCompleted(probe.number, accepts(probe.address)))
        os.eventfd_write(self._wake, 1)
