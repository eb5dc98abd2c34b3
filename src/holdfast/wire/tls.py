"""TLS: who a process of a run is to those of other hosts, and how it proves that.

A run on several hosts has a certificate authority of its own (`coordinator.authority`). A
certificate names its owner's run, host and role as a URI:

    holdfast://<run>/<host>/coordinator   serves
    holdfast://<run>/<host>/agent         speaks for its host to the coordinator and other hosts
    holdfast://<run>/<host>/data          exchanges gradients and state with other workers
"""

from __future__ import annotations

import enum
import hashlib
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

SCHEME: Final = "holdfast://"


class Role(enum.StrEnum):
    """Rights of a certificate's owner; see the module."""

    COORDINATOR = "coordinator"
    AGENT = "agent"
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The owner of a certificate.

    Attributes:
        run: The id of the run.
        host: The name of its agent.
        role: Its rights.
    """

    run: str
    host: str
    role: Role

    @property
    def uri(self) -> str:
        """URI that stands for it in a certificate."""
        return f"{SCHEME}{self.run}/{self.host}/{self.role}"

    @classmethod
    def of_uris(cls, uris: Iterable[str]) -> Self | None:
        """The identity that a verified certificate states; None if it states none."""
        for uri in uris:
            run, *rest = uri.removeprefix(SCHEME).split("/")
            if uri.startswith(SCHEME) and len(rest) == 2 and rest[1] in set(Role):
                return cls(run=run, host=rest[0], role=Role(rest[1]))
        return None

    @classmethod
    def of_peer(cls, certificate: Mapping[str, Any] | None) -> Self | None:
        """The identity of a peer, given what `ssl` says of its verified certificate."""
        names = (certificate or {}).get("subjectAltName", ())
        return cls.of_uris(value for kind, value in names if kind == "URI")


class Credentials(BaseModel):
    """A certificate and its key, in PEM.

    Attributes:
        authority: The certificate of the run's authority, with which those of peers are verified.
        certificate: The own certificate.
        key: Its key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    authority: str
    certificate: str
    key: str = Field(repr=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of the own certificate, hexadecimal."""
        return digest_of(ssl.PEM_cert_to_DER_cert(self.certificate))

    def server_context(self, *, strangers: bool = False) -> ssl.SSLContext:
        """A context for connections that are accepted, of TLS 1.3.

        Args:
            strangers: True if a peer may come without a certificate.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL if strangers else ssl.CERT_REQUIRED
        context.num_tickets = 0  # no connection is resumed
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context for connections that are made, of TLS 1.3."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # certificates name roles; the caller checks them
        return context

    def present(self, context: ssl.SSLContext) -> None:
        """Show the own certificate on the connections of a context."""
        # `ssl` reads files only, and the key must be on no disk.
        with _in_memory(f"{self.certificate}{self.key}".encode()) as memory:
            context.load_cert_chain(f"/proc/self/fd/{memory}")

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.authority)
        self.present(context)
        return context


class HostCredentials(BaseModel):
    """The credentials of a host, as its agent inherits them in memory.

    Attributes:
        agent: For the coordinator; None on its own host, where a Unix socket is used.
        data: For the workers, which never get the other; None if they talk in plain.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    agent: Credentials | None = None
    data: Credentials | None = None

    @contextmanager
    def in_memory(self) -> Iterator[int]:
        """A descriptor from which a child can read them."""
        with _in_memory(self.model_dump_json().encode()) as memory:
            yield memory

    @classmethod
    def take(cls, memory: int) -> Self:
        """Read them from an inherited descriptor, and close it."""
        with os.fdopen(memory, "rb") as file:
            file.seek(0)
            return cls.model_validate_json(file.read())


def pinned_context(own: Credentials | None) -> ssl.SSLContext:
    """A context for a connection to a server of which only the digest of its certificate is known.

    The client compares the digest before it sends anything.

    Args:
        own: Credentials to show to the server; None for nothing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own is not None:
        own.present(context)
    return context


def digest_of(certificate: bytes) -> str:
    """The SHA-256 of a certificate in DER, hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """A descriptor of a file with this content that is on no disk."""
    memory = os.memfd_create("holdfast-credentials", os.MFD_CLOEXEC)
    try:
        os.write(memory, content)
        yield memory
    finally:
        os.close(memory)
