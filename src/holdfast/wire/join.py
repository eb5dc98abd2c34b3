"""Join: how a host asks a coordinator to take part in a run."""

from __future__ import annotations

import grpc

from holdfast.errors import JobError
from holdfast.wire.rpc import OPTIONS, JoinedMessage, JoinMessage, Service, status_of


def join(coordinator: str, token: str, hostname: str, timeout_s: float) -> JoinedMessage:
    """Ask to take part.

    Args:
        coordinator: Its address and port.
        token: The run's.
        hostname: Of this host.
        timeout_s: How long to wait until it answers.

    Raises:
        JobError: It refuses, or does not answer.
    """
    with grpc.insecure_channel(coordinator, options=OPTIONS) as channel:
        try:
            joined: JoinedMessage = Service(channel, token).join(
                JoinMessage(hostname=hostname), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.RpcError as error:
            if status_of(error) == grpc.StatusCode.UNAUTHENTICATED:
                raise JobError(
                    f"the coordinator at {coordinator} does not know this token; take the file "
                    "that its run has printed"
                ) from None
            raise JobError(
                f"no coordinator answers at {coordinator}; see whether its run continues, and "
                "whether the network lets this host reach the port"
            ) from None
    return joined
