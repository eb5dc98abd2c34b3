"""Meeting: lets the other hosts of a check in, as the coordinator of a run does, on its ports."""

from __future__ import annotations

import asyncio
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from holdfast.coordinator import tokens
from holdfast.coordinator.admission import Admission
from holdfast.coordinator.authority import Authority, write_secret
from holdfast.coordinator.join_server import JoinServer
from holdfast.coordinator.journal import Journal
from holdfast.coordinator.refusals import Refusals
from holdfast.doctor.peers.line import Line
from holdfast.errors import HoldfastError
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS, SECRETS, TOKEN
from holdfast.runs.hosts.endpoint import Endpoint, make_secrets
from holdfast.wire.join import JoinedMessage, JoinMessage
from holdfast.wire.tls import Identity, Role

ATTEMPTS: Final = 8
"""How often each host may join: its user may have to open a port and try again."""
HANDSHAKE_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1
START_TIMEOUT_S: Final = 10.0

Welcome = Callable[[str, Line], None]
"""Greets a host that has connected, given its name."""


class Meeting:
    """Where hosts join, within its context.

    Args:
        folder: Of this check; its secrets are kept there.
        endpoint: Where hosts join; they connect to the port after it.
        others: How many hosts are expected.
        welcome: Called in a thread for each host.

    Attributes:
        lines: The connections to the hosts that have come, by the name of each.
        authority: Of this check.

    Raises:
        HoldfastError: The ports cannot be used.
    """

    def __init__(self, folder: Path, endpoint: Endpoint, others: int, welcome: Welcome) -> None:
        make_secrets(folder, endpoint)
        self._folder, self._endpoint, self._others = folder, endpoint, others
        self._welcome = welcome
        self.authority = Authority.load(folder / SECRETS)
        self.lines: dict[str, Line] = {}
        self._started, self._over, self._problem = threading.Event(), threading.Event(), ""
        self._threads = [threading.Thread(target=self._join), threading.Thread(target=self._accept)]
        family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
        try:
            self._listener = socket.create_server(
                (endpoint.address, endpoint.port + 1), family=family
            )
        except OSError as error:
            raise HoldfastError(
                f"this host cannot listen at {endpoint.address}:{endpoint.port + 1}: "
                f"{error.strerror}; name another --port or --address"
            ) from None
        self._listener.settimeout(POLL_S)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        self._started.wait(START_TIMEOUT_S)
        if self._problem:
            self.__exit__()
            raise HoldfastError(self._problem)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        self._listener.close()

    def instructions(self) -> str:
        """Make a token; returns in words how the other hosts join."""
        folder = self._folder / SECRETS
        token = tokens.issue(folder, self.authority, time.time(), ATTEMPTS * self._others)
        path = self._folder / TOKEN
        write_secret(path, token.text.encode() + b"\n")
        words = ["holdfast", "doctor", "--join", self._endpoint.public, "--token-file", str(path)]
        return (
            f"on each of {self._others} other hosts, with a copy of the token file, run:\n"
            f"  {shlex.join(words)}"
        )

    def await_hosts(self, timeout_s: float) -> bool:
        """Wait until all hosts have come; returns whether they have."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._forget_ended()
            if len(self.lines) == self._others or time.monotonic() > deadline:
                return len(self.lines) == self._others
            time.sleep(POLL_S)

    def _forget_ended(self) -> None:
        """Forget hosts that have ended: their users may have changed something, to try again."""
        for name in [name for name, line in self.lines.items() if line.has_ended]:
            self.lines.pop(name).close()

    def _join(self) -> None:
        """Answer those who ask for certificates."""
        with (
            Journal(self._folder / "doctor.db") as journal,
            EventLog(self._folder / EVENTS) as log,
        ):
            admission = Admission(
                self._folder / SECRETS, journal, joining=ATTEMPTS * self._others, attempt="doctor"
            )

            def admit(request: JoinMessage, before: Identity | None, _: str) -> JoinedMessage:
                return admission.admit(request, before, list(self.lines), time.time())

            async def serve() -> None:
                public, authority = self._endpoint.public, self.authority
                async with JoinServer(public, authority, admit, Refusals(log)):
                    self._started.set()
                    while not self._over.is_set():
                        await asyncio.sleep(POLL_S)

            try:
                asyncio.run(serve())
            except OSError as error:
                self._problem = (
                    f"this host cannot listen at {self._endpoint.public}: {error.strerror}; name "
                    "another --port or --address"
                )
        self._started.set()

    def _accept(self) -> None:
        """Greet the hosts that come with a certificate."""
        context = self.authority.coordinator.server_context()
        while not self._over.is_set():
            try:
                plain, _ = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._greet, args=[plain, context], daemon=True).start()

    def _greet(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        plain.settimeout(HANDSHAKE_TIMEOUT_S)
        with suppress(OSError, HoldfastError):  # not one of the hosts, or gone again
            connection = context.wrap_socket(plain, server_side=True)
            identity = Identity.of_peer(connection.getpeercert())
            if identity is None or identity.role != Role.AGENT:
                connection.close()
                return
            line = Line(connection, identity.host)
            self._forget_ended()
            if len(self.lines) < self._others:
                self.lines[identity.host] = line
                self._welcome(identity.host, line)
            else:
                line.close()
            return
        plain.close()
