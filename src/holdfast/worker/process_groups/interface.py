"""Interface: what gloo and NCCL use of a host: its network interface, and its GPUs."""

from __future__ import annotations

import os
from typing import Final

import torch

from holdfast.collectives.group import Group
from holdfast.job.train_job import TrainJob
from holdfast.linux.interfaces import interface_of
from holdfast.worker.process_groups.rendezvous import host_of

VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK: Final = "lo"
"""Interface that the fork server sets, for workers that are all on one host."""


def has_own_gpu(job: TrainJob, group: Group, device: torch.device) -> bool:
    """True if each worker of this host has a GPU of its own, as NCCL needs."""
    return device.type == "cuda" and (
        job.resources.gpus > 0 or torch.cuda.device_count() >= len(group.local)
    )


def set_interface(group: Group) -> None:
    """Have gloo and NCCL use the interface of this host; for a trusted network only.

    Without it, gloo uses the address that the host's name resolves to, and NCCL any interface. An
    interface that the user has named remains.
    """
    if group.network is None:
        return
    name = interface_of(host_of(group.network.hosts.addresses[group.rank]))
    for variable in VARIABLES if name else ():
        if os.environ.get(variable, LOOPBACK) == LOOPBACK:
            os.environ[variable] = name
