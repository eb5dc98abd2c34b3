"""Admission: who may take part in a run from another host, and as what.

A host joins with a token and gets certificates; from then on these say who it is. A host that has
taken part before gets new ones for its old one. Processes of the coordinator's own host connect
through a Unix socket that only its owner can open, and need none.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from holdfast.coordinator import tokens
from holdfast.coordinator.authority import Authority
from holdfast.coordinator.refusals import Refused
from holdfast.coordinator.replicated_journal import HostAdmitted, ReplicatedJournal
from holdfast.errors import JobError, ProtocolError
from holdfast.wire.join import JoinedMessage, JoinMessage
from holdfast.wire.tls import Identity, Role
from holdfast.wire.token import Token

GENERATION_SECRET: Final = "generation.key"  # noqa: S105  # the name of a file
"""In the folder of the run's secrets: what the keys of generations are derived from."""
GRACE_S: Final = 60.0
"""Time that a host counts as present after it was admitted and before its agent has connected."""


class Admission:
    """The admission of one run on several hosts.

    Args:
        folder: With the run's secrets.
        journal: Outlives this process: a token that was used stays used.
        joining: Number of hosts that may take part at once besides the coordinator's own.
        attempt: Names this start of the run.
    """

    def __init__(
        self, folder: Path, journal: ReplicatedJournal, *, joining: int, attempt: str
    ) -> None:
        self.authority = Authority.load(folder)
        self._folder = folder
        self._journal = journal
        self._joining = joining
        self._attempt = attempt
        self._admitted = journal.admitted()
        self._expected_until: dict[str, float] = {}
        self._secret = (folder / GENERATION_SECRET).read_bytes()

    def admit(
        self,
        request: JoinMessage,
        before: Identity | None,
        present: Collection[str],
        now: float,
    ) -> JoinedMessage:
        """Let a host take part. The same request is answered alike: an answer may get lost.

        Args:
            request: The host's.
            before: Identity in the certificate of a host that has taken part before.
            present: The names of agents that take part now.
            now: Unix seconds.

        Raises:
            Refused: It may not take part.
            HoldfastError: The journal cannot be written.
        """
        if before is not None and before.role != Role.AGENT:
            raise Refused("a certificate that is not an agent's", "join with a token")
        keys = hashlib.sha256(f"{request.agent}{request.data}".encode()).hexdigest()
        # A host asks again if the answer was lost; its keys are new for every other request.
        known = next((each for each in self._admitted if each.keys == keys), None)
        if known is not None:
            return self._joined(known.host, request)
        digest = self._token_of(request, before, now)
        replaced = {before.host} if before else set()
        # A host that joins again takes the place that it had, even if its loss was not noticed yet.
        if len(self._remote(present, now) - replaced) >= self._joining:
            raise Refused(
                f"one host more than the {self._joining} that may join",
                "all of them take part; join again once one is lost, or start a run with more",
            )
        name = _name_of(request.hostname)
        joined = self._joined(name, request)  # before it counts: the request may be none
        admitted = HostAdmitted(host=name, keys=keys, token=digest)
        # Durable before the host is answered: a successor must count this use of the token.
        self._journal.admit(admitted)
        self._admitted.append(admitted)
        if before is not None:  # it may have ended before it connected
            self._expected_until.pop(before.host, None)
        self._expected_until[name] = now + GRACE_S
        return joined

    def on_connected(self, host: str) -> None:
        """Note that the agent of a host has connected: from now on the run knows of its loss."""
        self._expected_until.pop(host, None)

    def expect(self, host: str, node: str) -> None:
        """Take note of the node of a host whose agent starts; see `HostExpected`."""
        self._journal.expect(host, node)

    def set_present(self, nodes: Mapping[str, str]) -> None:
        """Take note of the hosts that take part; see `ReplicatedJournal.set_present`."""
        self._journal.set_present(nodes)

    def key_of(self, generation: int) -> str:
        """Secret of the members of a generation, hexadecimal."""
        # It follows from the run's secret, so a coordinator on another host gives the same one.
        return hmac.digest(self._secret, f"generation {generation}".encode(), "sha256").hex()

    def _token_of(self, request: JoinMessage, before: Identity | None, now: float) -> str:
        """The digest of the token with which a host joins; empty if it joins again."""
        if before is not None:
            return ""
        try:
            token = Token.parse(request.token)
        except JobError as error:
            raise Refused("no token", str(error)) from None
        used = [each.token for each in self._admitted]
        tokens.check(self._folder, token, self.authority.run, used, now)
        return token.digest

    def _remote(self, present: Collection[str], now: float) -> set[str]:
        """Hosts other than the coordinator's own that take part, or are about to."""
        names = {each.host for each in self._admitted}
        expected = {host for host, until in self._expected_until.items() if now < until}
        return names.intersection(present) | expected

    def _joined(self, name: str, request: JoinMessage) -> JoinedMessage:
        try:
            return JoinedMessage(
                name=name,
                attempt=self._attempt,
                authority=self.authority.certificate,
                agent=self.authority.sign(request.agent, name, Role.AGENT),
                data=self.authority.sign(request.data, name, Role.DATA),
            )
        except ProtocolError as error:
            raise Refused("no request for certificates", str(error)) from None


def _name_of(hostname: str) -> str:
    """A name for a new agent on a host, which was never used before, not even by an earlier
    coordinator of the run.
    """
    plain = re.sub(r"[^A-Za-z0-9-]", "-", hostname)[:40] or "host"
    return f"{plain}-{secrets.token_hex(4)}"
