"""Interface: the network interface that gloo and NCCL use between hosts."""

from __future__ import annotations

import os

from holdfast.collectives.group import Group
from holdfast.linux.interfaces import interface_of
from holdfast.worker.process_groups.rendezvous import host_of

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def set_interface(group: Group) -> None:
    """Have gloo and NCCL use the interface on which this worker accepts those of other hosts.

    Without it, gloo uses the address that the host's name resolves to, and NCCL any interface. A
    variable that the user has set remains.
    """
    if group.network is None:
        return
    name = interface_of(host_of(group.network.hosts.addresses[group.rank]))
    for variable in VARIABLES if name else ():
        os.environ.setdefault(variable, name)
