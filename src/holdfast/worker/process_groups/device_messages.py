"""Device messages: a process group of PyTorch that moves memory between the devices of workers.

    a thread   connect ─▶ … ─▶ send and receive ─▶ wait for the library and the device
    worker     └─ waits for the thread, and looks whether the generation is over ─▶ abort

NCCL moves what is on GPUs, gloo what is in memory. Neither adds anything. Each generation has a
group of its own. No call of a library outlives a generation: it is made in a thread, and aborted.
Where that does not end it, the worker ends itself, and is replaced.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import torch
from torch.distributed import PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from holdfast.collectives.device_queue import DeviceQueue
from holdfast.collectives.network import Network
from holdfast.collectives.reduction import Message
from holdfast.core.failures import LEFT_STATUS
from holdfast.errors import Aborted, JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.cascade import await_abort, is_connection_error
from holdfast.worker.process_groups.interface import has_own_gpu, set_interface
from holdfast.worker.process_groups.rendezvous import Rendezvous, meet

ABORT_TIMEOUT_S: Final = 1.0
"""Time that the end of a process group may take before the worker ends itself."""
TIMEOUT: Final = timedelta(days=365)
"""Limit of waits in a library, above any of the worker's own."""
CONNECTING: Final = "connecting the devices of workers"
NCCL_VARIABLES: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "5",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
"""Variables that keep PyTorch from ending or blocking the process when another worker is lost."""
_UNUSED_TAG: Final = 1

T = TypeVar("T")


class AbortableGloo(distributed_c10d.ProcessGroupGloo):
    """Gloo whose waits end when it is aborted."""

    def abort(self) -> None:
        """End all waits: gloo breaks all connections of a group where it waits in vain on one."""
        gloo: Any = self  # its methods are missing in PyTorch's stubs
        for other in set(range(gloo.size())) - {gloo.rank()}:
            with contextlib.suppress(RuntimeError):
                never = gloo.recv([torch.empty(1, dtype=torch.uint8)], other, _UNUSED_TAG)
                never.wait(timedelta(milliseconds=1))


def backend_on(device: torch.device, store: Any, rank: int, size: int) -> Any:
    """Backend for messages between devices such as this one: NCCL's part of a worker, or gloo's.

    Args:
        device: Device of the worker.
        store: Store by which the workers meet.
        rank, size: The worker, and the number of workers.
    """
    if device.type != "cuda":
        return AbortableGloo(store, rank, size, TIMEOUT)
    for name, value in NCCL_VARIABLES.items():
        os.environ.setdefault(name, value)
    options = distributed_c10d.ProcessGroupNCCL.Options()
    # No call of NCCL blocks, so the thread that makes it can be aborted.
    options.config.blocking = 0
    options._timeout = TIMEOUT
    return distributed_c10d.ProcessGroupNCCL(store, rank, size, options)


class ProcessGroupMessages:
    """Moves messages between the devices of workers; see `reduction.DeviceMessages`.

    Args:
        worker: The worker.
        device: Its device.

    Raises:
        JobError: Workers share a GPU.
    """

    def __init__(self, worker: WorkerContext, device: torch.device) -> None:
        if device.type == "cuda" and not has_own_gpu(worker.job, worker.group, device):
            raise JobError(
                "exchange=nccl needs a GPU for each worker; start fewer workers on each host, or "
                "set exchange=mapped"
            )
        self._worker = worker
        self._device = device
        self._queue = DeviceQueue(device)
        self._rendezvous: Rendezvous | None = None
        self._backend: Any = None
        self._done = threading.Event()  # of the newest call
        self._has_exchanged = False  # in this generation

    def connect(self) -> None:
        """Connect to the members of the generation that begins, on several hosts.

        Raises:
            Aborted: The generation is over.
        """
        self._end()
        group = self._worker.group
        network = group.network
        if network is None:
            return
        set_interface(group)
        self._rendezvous = meet(group, self._worker.agent, "trusted", port=0)
        self._backend = backend = self._call(
            network, partial(self._make_backend, self._rendezvous), CONNECTING
        )
        if self._device.type == "cuda":
            self._call(
                network, lambda: backend.eager_connect_single_device(self._device), CONNECTING
            )

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Implements `DeviceMessages.exchange`."""
        network = self._worker.group.network
        assert network is not None
        self._call(network, lambda: self._exchange(sends, receives), what)
        self._has_exchanged = True

    def _make_backend(self, rendezvous: Rendezvous) -> Any:
        group = self._worker.group
        store = PrefixStore(f"generation-{group.generation}", rendezvous.connect())
        return backend_on(self._device, store, group.rank, len(group.members))

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if not (sends or receives):
            return
        backend = self._backend
        is_batch = backend.supports_coalescing
        # NCCL moves what is sent and received at once only if both are calls of one group.
        if is_batch:
            backend._start_coalescing()
        works = [backend.send([each], rank, 0) for rank, each in sends]
        works += [backend.recv([each], rank, 0) for rank, each in receives]
        if is_batch:
            works = [backend._end_coalescing()]
        for work in works:
            work.wait()
        # On a GPU the library has only queued it: the memory is free once the device is through.
        self._queue.wait()

    def _call(self, network: Network, call: Callable[[], T], what: str) -> T:
        """Call a library in a thread.

        Raises:
            Aborted: The generation is over, and so is the call: only one that connects is left to
                itself, as it has no memory of a device yet.
        """
        done = self._done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []
        # A thread begins with the default stream, and NCCL follows the one that it is called in.
        stream = None if self._device.type != "cuda" else torch.cuda.current_stream(self._device)

        def run() -> None:
            try:
                with torch.cuda.stream(stream):
                    results.append(call())
            except Exception as error:  # noqa: BLE001  # raised in the worker's own thread
                errors.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name="device-messages", daemon=True).start()
        try:
            network.await_event(done, what)
            for error in errors:
                self._raise(network, error, what)
        except Aborted:
            self._end()
            raise
        return results[0]

    def _raise(self, network: Network, error: Exception, what: str) -> NoReturn:
        """Raise an error of a library, unless it is of a connection.

        Raises:
            Aborted: The generation is over. A survivor sees a connection break before its agent
                reports whose worker was lost.
        """
        if is_connection_error(error):
            # What has worked breaks by chance, so new connections will do.
            if self._has_exchanged:
                network.await_abort(what)
            await_abort(self._worker.group)
        raise error

    def _end(self) -> None:
        """Abort the group, if there is one, and the call that is under way. Where that takes too
        long, the library may still read or write memory, so this process ends.
        """
        if self._backend is None:
            return
        ended = threading.Event()

        def abort() -> None:
            self._backend.abort()
            self._done.wait()
            ended.set()

        threading.Thread(target=abort, name="abort", daemon=True).start()
        if not ended.wait(ABORT_TIMEOUT_S):
            print(f"no end of a process group within {ABORT_TIMEOUT_S} s", file=sys.stderr)
            sys.stderr.flush()
            os._exit(LEFT_STATUS)
        self._backend = None
        self._rendezvous = None
        self._has_exchanged = False
