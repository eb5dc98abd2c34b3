"""Interfaces: which network interface has an address; see netdevice(7)."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIOCGIFCONF: Final = 0x8912
_IFREQ: Final = struct.Struct("=16sHH4s16x")
"""`struct ifreq` for an address of IPv4: name, family, port, address."""
_MAX_ADDRESSES: Final = 1024


def interface_of(address: str) -> str:
    """The name of the interface with an address, such as `eth0`; empty if there is none.

    Args:
        address: Address, IPv4 or IPv6, in numbers.
    """
    wanted = ipaddress.ip_address(address.partition("%")[0])
    known = _of_version_4() if wanted.version == 4 else _of_version_6()
    return next((name for name, each in known if each == wanted), "")


def _of_version_4() -> Iterator[tuple[str, ipaddress.IPv4Address]]:
    buffer = array.array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
    request = bytearray(struct.pack("iP", len(buffer), buffer.buffer_info()[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request)
    (used,) = struct.unpack_from("i", request)
    for name, _, _, packed in _IFREQ.iter_unpack(buffer[:used].tobytes()):
        yield name.partition(b"\0")[0].decode(), ipaddress.IPv4Address(packed)


def _of_version_6() -> Iterator[tuple[str, ipaddress.IPv6Address]]:
    path = Path("/proc/net/if_inet6")
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else ():
        packed, *_, name = line.split()
        yield name, ipaddress.IPv6Address(bytes.fromhex(packed))
