"""Network: loopback, this host's address, its name, and the ports that a run listens on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import psutil

from holdfast.doctor.finding import Finding, advice, fault, ok
from holdfast.linux.interfaces import interface_of
from holdfast.runs.hosts.endpoint import address_towards

LOOPBACK: Final = "127.0.0.1"
TIMEOUT_S: Final = 5.0
"""Time that a connection on this host, or looking up its name, may take."""
_MESSAGE: Final = b"holdfast"


def loopback() -> Finding:
    """Check that processes of this host can talk to each other by TCP."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            server.settimeout(TIMEOUT_S)
            with (
                socket.create_connection(server.getsockname(), TIMEOUT_S) as near,
                server.accept()[0] as far,
            ):
                near.sendall(_MESSAGE)
                far.settimeout(TIMEOUT_S)
                received = far.recv(len(_MESSAGE), socket.MSG_WAITALL)
    except OSError as error:
        return fault(
            "loopback",
            f"no connection to {LOOPBACK}: {error.strerror or error}",
            "bring the interface up (ip link set lo up), and let the firewall pass what stays on "
            "the host (iptables -I INPUT -i lo -j ACCEPT)",
        )
    assert received == _MESSAGE, "TCP delivers what was sent"
    return ok("loopback", f"TCP works on {LOOPBACK}")


def address(given: str, *, needed: bool) -> Finding:
    """Check of the interface and address that other hosts would reach.

    Args:
        given: The address that the user has named; empty for that of the default route.
        needed: True if the job has other hosts.
    """
    try:
        found = given or address_towards()
    except OSError:
        makes = fault if needed else advice
        return makes(
            "address",
            "there is no default route, so it is not known where other hosts reach this one",
            "name an address of this host by --address",
        )
    try:
        interface = interface_of(found)
    except ValueError:
        return fault("address", f"{found} is no address", "name one in numbers by --address")
    if not interface:
        return fault(
            "address",
            f"no interface of this host has {found}",
            "name an address that ip address shows by --address",
        )
    if needed and found.startswith("127."):
        return fault(
            "address",
            f"{found} is on {interface}, which other hosts cannot reach",
            "name an address of another interface by --address",
        )
    return ok("address", f"{found} on {interface}")


def ports(wanted: Mapping[int, str], on: str) -> list[Finding]:
    """Check that this host can listen on ports, of which each has a use.

    Args:
        wanted: The ports and what for.
        on: The address; empty for any.
    """
    return [_port(port, use, on) for port, use in wanted.items()]


def own_name() -> Finding:
    """Check that the name of this host can be resolved, and soon: gloo and others look it up."""
    name = socket.gethostname()
    found = list[str]()

    def look_up() -> None:
        with suppress(OSError):
            found.extend(str(each[4][0]) for each in socket.getaddrinfo(name, None))

    looking = threading.Thread(target=look_up, daemon=True)
    looking.start()
    looking.join(TIMEOUT_S)
    if looking.is_alive():
        why = f"{name} is not resolved within {TIMEOUT_S:.0f} s"
    elif not found:
        why = f"{name} is not resolved"
    else:
        return ok("host name", f"{name} is {', '.join(dict.fromkeys(found))}")
    return advice(
        "host name",
        f"{why}; holdfast does not need it, gloo in your own script does",
        f"add a line '127.0.1.1 {name}' to /etc/hosts",
    )


def _port(port: int, use: str, on: str) -> Finding:
    check = f"port {port}"
    family = socket.AF_INET6 if ":" in on else socket.AF_INET
    try:
        with socket.create_server((on, port), family=family):
            return ok(check, f"free, for {use}")
    except OSError as error:
        holder = _holder(port)
        by = f" by {holder}" if holder else ""
        return fault(
            check,
            f"cannot be used for {use}: {error.strerror}{by}",
            "end the process that listens on it, or name another port (--port, or port=)",
        )


def _holder(port: int) -> str:
    """The process that listens on a port, as far as this user may see it; empty if unknown."""
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return ""
