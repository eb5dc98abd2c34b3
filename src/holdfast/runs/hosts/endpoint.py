"""Endpoint: where other hosts reach a run, and how they prove that they may.

A run on one host has no secrets: what makes them is imported in the functions.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import JobError
from holdfast.rundir.run_directory import SECRETS, TOKEN
from holdfast.wire.tls import HostCredentials, Role

if TYPE_CHECKING:
    from holdfast.coordinator.replicated_journal import RunSecrets
    from holdfast.job.settings import EtcdSettings
    from holdfast.runs.replication.host_node import Node

DEFAULT_PORT: Final = 50051
_ADDRESS: Final = "address"
"""In the folder of the run's secrets: where hosts join."""
_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is in no network (RFC 5737): the route to it is the default route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and port at which a run listens for other hosts.

    Attributes:
        address: Address of the interface: for the coordinator, and for the workers of its host.
        port: Port at which hosts join; their agents connect to the port after it.
    """

    address: str
    port: int

    @property
    def public(self) -> str:
        """Address and port that other hosts join."""
        return f"{self.address}:{self.port}"

    def check_ports(self) -> None:
        """Check that both ports can be used, before anything is made.

        Raises:
            JobError: One cannot.
        """
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        for port in (self.port, self.port + 1):
            try:
                socket.create_server((self.address, port), family=family).close()
            except OSError as error:
                raise JobError(
                    f"this host cannot listen at {self.address}:{port}: "
                    f"{os.strerror(error.errno or 0)}; name "
                    "another --port or --address, or end what has the port"
                ) from None

    def first_node(self, run_dir: Path, attempt: str, etcd: EtcdSettings | None) -> Node:
        """The node of the coordinator's own host, which begins the journal.

        Args:
            run_dir: The run's directory.
            attempt: Names this start of the run.
            etcd: The cluster that keeps the journal; None if hosts do.

        Raises:
            HoldfastError: The cluster does not answer, or cannot be trusted.
        """
        from holdfast.coordinator.authority import Authority
        from holdfast.coordinator.replicated_journal import JournalRecord
        from holdfast.runs.replication.etcd_node import EtcdNode, prefix_of
        from holdfast.runs.replication.node import ConsensusNode

        # The first entry, so that every host that may take over has the secrets.
        first = JournalRecord(secrets=read_secrets(run_dir)).encoded
        if etcd is not None:
            return EtcdNode(etcd, prefix_of(run_dir, attempt), self.address, first)
        authority = Authority.load(run_dir / SECRETS)
        node = ConsensusNode(self.address, authority.issue("first", Role.AGENT), begins=True)
        node.append(first)
        return node

    def own_interface(self, run_dir: Path, network: str) -> Interface:
        """The interface of the coordinator's own host, whose agent needs no certificate."""
        from holdfast.coordinator.authority import Authority

        authority = Authority.load(run_dir / SECRETS)
        data = authority.issue("first", Role.DATA) if network == "tls" else None
        return Interface(address=self.address, credentials=HostCredentials(data=data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Interface of a host, for its processes to reach other hosts.

    Attributes:
        address: On which its workers accept connections.
        credentials: Certificates that they show.
    """

    address: str
    credentials: HostCredentials = field(repr=False)


def make_secrets(run_dir: Path, endpoint: Endpoint) -> None:
    """Make the keys of one start of a run.

    Args:
        run_dir: The run's directory.
        endpoint: Address at which it listens.
    """
    from holdfast.coordinator import tokens
    from holdfast.coordinator.admission import GENERATION_SECRET
    from holdfast.coordinator.authority import Authority, write_secret

    folder = run_dir / SECRETS
    folder.mkdir(mode=0o700, exist_ok=True)
    Authority.create(folder)
    write_secret(folder / GENERATION_SECRET, secrets.token_bytes(32))
    write_secret(folder / _ADDRESS, endpoint.public.encode())
    tokens.forget(folder)


def read_secrets(run_dir: Path) -> RunSecrets:
    """The secrets of this start of a run, for a host that takes over its coordinator."""
    from holdfast.coordinator.admission import GENERATION_SECRET
    from holdfast.coordinator.authority import AUTHORITY, COORDINATOR
    from holdfast.coordinator.replicated_journal import RunSecrets

    folder = run_dir / SECRETS
    return RunSecrets(
        authority=(folder / AUTHORITY).read_text(encoding="utf-8"),
        coordinator=(folder / COORDINATOR).read_text(encoding="utf-8"),
        generation_key=(folder / GENERATION_SECRET).read_bytes().hex(),
    )


def take_secrets(run_dir: Path, secrets: RunSecrets, endpoint: Endpoint) -> None:
    """Keep the secrets of a run whose coordinator this host takes over.

    Args:
        run_dir: The run's directory on this host.
        secrets: The run's.
        endpoint: Address at which it listens from now on.
    """
    from holdfast.coordinator import tokens
    from holdfast.coordinator.admission import GENERATION_SECRET
    from holdfast.coordinator.authority import AUTHORITY, COORDINATOR, write_secret

    folder = run_dir / SECRETS
    folder.mkdir(mode=0o700, exist_ok=True)
    write_secret(folder / AUTHORITY, secrets.authority.encode())
    write_secret(folder / COORDINATOR, secrets.coordinator.encode())
    write_secret(folder / GENERATION_SECRET, bytes.fromhex(secrets.generation_key))
    write_secret(folder / _ADDRESS, endpoint.public.encode())
    tokens.forget(folder)


def make_token(run_dir: Path, uses: int) -> str:
    """Make a token with which so many hosts can join; returns in words how they do.

    Raises:
        JobError: The run has no other hosts.
    """
    from holdfast.coordinator import tokens
    from holdfast.coordinator.authority import Authority, write_secret

    folder = run_dir / SECRETS
    if not (folder / _ADDRESS).exists():
        raise JobError(f"{run_dir} is no run on several hosts; start one by holdfast coordinator")
    token = tokens.issue(folder, Authority.load(folder), time.time(), uses)
    write_secret(run_dir / TOKEN, token.text.encode() + b"\n")
    address = (folder / _ADDRESS).read_text(encoding="ascii")
    join = ["holdfast", "agent", "--join", address, "--token-file", str(run_dir / TOKEN)]
    who = "another host" if uses == 1 else f"each of {uses} other hosts"
    return f"on {who}, with a copy of the token file, run:\n  {shlex.join(join)}"


def rejoin_hint(run_dir: Path) -> str:
    """Words for how a host that was lost takes part again."""
    token = shlex.join(["holdfast", "token", str(run_dir)])
    return (
        "a lost host joins again by itself once it is reached, if its `holdfast agent` still runs; "
        f"else `{token}` prints the line that starts one"
    )


def free_port() -> int:
    """A port that is free now, as is the one after it."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError):
                second.bind(("", port + 1))
                return port
    raise JobError("no two neighbouring ports are free on this host; end what holds them")


def address_towards(host: str = "", port: int = 0) -> str:
    """The address of the interface from which packets leave for `host`, or for anywhere.

    Raises:
        OSError: There is no route.
    """
    target = (host, port) if host else _ELSEWHERE
    family, kind, *_, resolved = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(resolved)  # sends nothing
        return str(probe.getsockname()[0])
