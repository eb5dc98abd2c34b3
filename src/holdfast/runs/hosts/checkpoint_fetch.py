"""Checkpoint fetch: gets the checkpoint of the coordinator's host for a run that is resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import receive
from holdfast.errors import CheckpointError, JobError
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.checkpoint_service import (
    CheckpointMessage,
    CheckpointService,
    transfer_timeout_s,
)
from holdfast.wire.rpc import details_of, open_channel
from holdfast.wire.tls import Credentials

_ATTEMPT: Final = "f"
"""Names the draft: workers have not begun to write any."""


def provide(
    run_dir: Path,
    offered: CheckpointMessage,
    address: str,
    credentials: Credentials | None,
    log: EventLog,
    *,
    host: str,
) -> None:
    """Have a checkpoint on this host at least as new as the one that the coordinator offers.

    Args:
        run_dir: The run's directory on this host.
        offered: Offer of the coordinator.
        address: Address of its gRPC service.
        credentials: The agent's.
        log: The run's log of events.
        host: The agent's name.

    Raises:
        JobError: The checkpoint did not arrive. Without one the run would begin from nothing.
    """
    store = CheckpointStore.of_run(run_dir)
    began = time.monotonic()
    newest = None
    with contextlib.suppress(OSError):  # the agent waits if it has a newer one
        newest = store.newest()
    if newest is not None and newest.step >= offered.step:
        return
    with open_channel(address, credentials) as channel:
        stream = CheckpointService(channel).fetch(
            offered, timeout=transfer_timeout_s(offered.size_bytes), wait_for_ready=True
        )
        try:
            name = receive(store, _ATTEMPT, _pieces(stream), offered)
        except (CheckpointError, OSError) as error:
            raise JobError(
                f"the checkpoint of step {offered.step} did not arrive from the coordinator at "
                f"{address}: {error}; free disk space if there is too little, and join again"
            ) from None
        finally:
            stream.cancel()
    log.event(
        "checkpoint-fetched",
        step=offered.step,
        directory=store.location(name),
        host=host,
        seconds=round(time.monotonic() - began, 3),
    )


def _pieces(stream: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from stream
    except grpc.RpcError as error:
        raise CheckpointError(details_of(error)) from None
