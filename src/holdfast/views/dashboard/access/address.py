"""Address: where the dashboard listens, and under which names it is served."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from holdfast.errors import JobError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the dashboard listens.

    Attributes:
        host: As `--host` says it: an address or a name of this host.
        address: The same in numbers.
    """

    host: str
    address: str

    @classmethod
    def parse(cls, host: str) -> Self:
        """Raises: JobError: It is neither an address nor a known name."""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise JobError(
                f"--host {host}: {getattr(error, 'strerror', error)}; give an address or a name of "
                "this host, such as 0.0.0.0 for all of its addresses"
            ) from None
        return cls(host=host, address=str(found[0][4][0]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of this host."""
        return ipaddress.ip_address(self.address).is_unspecified

    @property
    def reachable(self) -> str:
        """An address at which this host reaches it."""
        if not self.is_any:
            return self.address
        return "::1" if ":" in self.address else LOOPBACK

    def url(self, port: int) -> str:
        """Where a browser finds the page; beyond this machine, over TLS only."""
        name = socket.gethostname() if self.is_any else self.host
        scheme = "http" if self.is_loopback else "https"
        return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"

    def listen(self, port: int) -> socket.socket:
        """A socket that listens at a port; at a free one for 0.

        Raises:
            JobError: This host cannot listen there.
        """
        is_six = ":" in self.address
        try:
            return socket.create_server(
                (self.address, port),
                family=socket.AF_INET6 if is_six else socket.AF_INET,
                dualstack_ipv6=is_six and self.is_any and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise JobError(
                    f"--host {self.host}: {self.address} is no address of this host; pass one of "
                    "them, or 0.0.0.0 for all"
                ) from None
            raise JobError(
                f"--port {port}: this host cannot listen at {self.address}:{port}: "
                f"{os.strerror(error.errno or 0)}; pass another, or 0 for any that is free"
            ) from None

    def serves(self, asked: str) -> bool:
        """Whether this is the host that a request is meant for.

        A page of another site may send a browser here under a name of its own (DNS rebinding); it
        cannot do so under an address in numbers.

        Args:
            asked: The request's header `Host`.
        """
        try:
            name = (urlsplit(f"//{asked}").hostname or "").rstrip(".")
        except ValueError:
            return False
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            first = name.partition(".")[0]
            is_ours = first == socket.gethostname().partition(".")[0].lower()
            return name in ("localhost", self.host.lower()) or (is_ours and not self.is_loopback)
        return literal.is_loopback or not self.is_loopback
