"""Endpoint: where agents of other hosts reach a run, and how they prove that they may."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.coordinator.admission import token_of
from holdfast.observe.run_dir import SECRET, TOKEN

DEFAULT_PORT: Final = 50051
_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is in no network (RFC 5737): the route to it is the default route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a run listens for other hosts.

    Attributes:
        address: Of the interface: for the coordinator, and for the workers of its host.
        port: The coordinator's.
    """

    address: str
    port: int

    @property
    def public(self) -> str:
        """The coordinator's address for other hosts."""
        return f"{self.address}:{self.port}"


def make_token(run_dir: Path) -> Path:
    """Make the secrets of a run; returns the file with the token, which only its owner can read."""
    folder = run_dir / SECRET.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    secret = secrets.token_bytes(32)
    for path, content in {SECRET: secret, TOKEN: token_of(secret).encode()}.items():
        fd = os.open(run_dir / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
    return run_dir / TOKEN


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
