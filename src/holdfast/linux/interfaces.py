"""Interfaces: which network interface has an address."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

import psutil

_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def interface_of(address: str) -> str:
    """The name of the interface with an address, such as `eth0`; empty if there is none.

    Args:
        address: Address, IPv4 or IPv6, in numbers.
    """
    wanted = _in_numbers(address)
    known = (
        str(name)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in _FAMILIES and _in_numbers(each.address) == wanted
    )
    return next(known, "")


def _in_numbers(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without the scope that the kernel adds to one of a link."""
    return ipaddress.ip_address(address.partition("%")[0])
