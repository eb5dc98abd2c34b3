"""MetricsAddress: where metrics are served, as `--metrics [ADDRESS:]PORT` says."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Final, Self

from holdfast.errors import JobError

_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """Address at which metrics are served.

    Attributes:
        address: Address of an interface of this host, in numbers.
        port: 0 for a free one.
    """

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: JobError: The text is no address and port, or this host cannot listen there."""
        address, _, port = text.rpartition(":")
        try:
            known = ipaddress.ip_address(address.strip("[]") or _LOOPBACK)
        except ValueError:
            known = None
        if known is None or not port.isdecimal() or int(port) > 65535:
            raise JobError(
                f"--metrics {text}: give a port, such as 9400, or an address of this host in "
                "numbers and a port, such as 0.0.0.0:9400 or [::]:9400"
            )
        parsed = cls(address=str(known), port=int(port))
        parsed._check()
        return parsed

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach it."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def family(self) -> socket.AddressFamily:
        """The socket's."""
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET

    def url(self, port: int) -> str:
        """URL of a server at `port`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{port}/metrics"

    def _check(self) -> None:
        try:
            socket.create_server((self.address, self.port), family=self.family).close()
        except OSError as error:
            raise JobError(
                f"--metrics: this host cannot listen at {self.address}:{self.port}: "
                f"{os.strerror(error.errno or 0)}; name another port or address"
            ) from None
