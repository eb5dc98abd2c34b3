"""The Ray cluster: connecting to it, what is free in it, and which nodes it will take away.

The one module that uses parts of Ray that are not its public interface.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray
from ray._private import state

from holdfast.errors import EngineError

NAMESPACE: Final = "holdfast"


def connect(address: str) -> bool:
    """Connect this process to a cluster, unless it is connected.

    Args:
        address: The cluster's; by default `RAY_ADDRESS`, or one that runs on this host.

    Returns:
        Whether it was not connected before.

    Raises:
        EngineError: There is no cluster, or it refuses this process.
    """
    if ray.is_initialized():
        return False
    where = address or "auto"
    try:
        ray.init(
            address=where,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # noqa: BLE001  # Ray raises many kinds
        cause = str(error).partition("\n")[0]
        raise EngineError(
            f"no Ray cluster can be used at {where}: {cause}; start one by `ray start --head`, or "
            "name it: --on ray:ADDRESS"
        ) from None
    return True


def address() -> str:
    """The address of the cluster's head node."""
    return str(ray.get_runtime_context().gcs_address).rpartition(":")[0]


def own_address() -> str:
    """The address at which other nodes of the cluster reach this one."""
    return str(ray.util.get_node_ip_address())


def hosts_with(resources: Mapping[str, float]) -> tuple[int, int]:
    """Number of nodes that have so much free now, and of all nodes."""
    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    fit = sum(
        all(each.get(name, 0.0) >= amount for name, amount in resources.items())
        for each in free.values()
    )
    return fit, len(free)


def draining() -> dict[str, float | None]:
    """The nodes that will be taken away, and when, Unix seconds; None if that is not known."""
    found: dict[str, Any] = {}
    with suppress(Exception):  # Ray does not answer: nothing is known
        found = state.state.get_draining_nodes()
    return {node: deadline_ms / 1000 or None for node, deadline_ms in found.items()}
