"""Device messages: a process group of PyTorch that moves memory between the devices of workers.

    a thread   connect ─▶ … ─▶ send and receive ─▶ wait for the library and the device
    worker     └─ waits for the thread, and looks whether the generation is over ─▶ abort

NCCL moves what is on GPUs, gloo what is in memory. Neither adds anything. Each generation has a
group of its own. No call of a library outlives a generation: it is made in a thread, and aborted.
Where that does not end it, the worker ends itself: its state is on the device and outlives it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch.distributed import PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from holdfast.collectives.device_queue import DeviceQueue
from holdfast.collectives.network import Network
from holdfast.collectives.reduction import Message
from holdfast.core.failures import LEFT_STATUS
from holdfast.errors import Aborted, JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.cascade import is_connection_error
from holdfast.worker.process_groups.interface import has_own_gpu, set_interface
from holdfast.worker.process_groups.rendezvous import Rendezvous, meet

ABORT_TIMEOUT_S: Final = 1.0
"""How long the end of a process group may take before the worker ends itself."""
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
"""What keeps PyTorch from ending the process, and from blocking it, when another worker is lost."""
_UNUSED_TAG: Final = 1


class AbortableGloo(distributed_c10d.ProcessGroupGloo):
    """Gloo whose waits end when it is aborted."""

    def abort(self) -> None:
        """End all waits: gloo breaks the connections of a group when one of its waits ends."""
        gloo: Any = self  # its methods are missing in PyTorch's stubs
        other = 1 if gloo.rank() == 0 else 0
        with contextlib.suppress(RuntimeError):
            never = gloo.recv([torch.empty(1, dtype=torch.uint8)], other, _UNUSED_TAG)
            never.wait(timedelta(milliseconds=1))


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

    def connect(self) -> None:
        """Connect to the members of the generation that begins, on several hosts.

        Raises:
            Aborted: The generation is over.
        """
        if self._backend is not None:
            self._end()
        group = self._worker.group
        if group.network is None:
            return
        set_interface(group)
        self._rendezvous = meet(group, self._worker.agent, "trusted", port=0)
        self._call(group.network, self._make_backend, CONNECTING)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Implements `DeviceMessages.exchange`."""
        network = self._worker.group.network
        assert network is not None
        self._call(network, lambda: self._exchange(sends, receives), what)

    def _make_backend(self) -> None:
        group = self._worker.group
        assert self._rendezvous is not None
        store = PrefixStore(f"generation-{group.generation}", self._rendezvous.connect())
        # The limit of all waits is the worker's own.
        timeout = timedelta(days=365)
        if self._device.type != "cuda":
            self._backend = AbortableGloo(store, group.rank, len(group.members), timeout)
            return
        os.environ.update(NCCL_VARIABLES)
        options = distributed_c10d.ProcessGroupNCCL.Options()
        options.config.blocking = 0
        options._timeout = timeout
        self._backend = distributed_c10d.ProcessGroupNCCL(
            store, group.rank, len(group.members), options
        )
        self._backend.eager_connect_single_device(self._device)

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if not (sends or receives):
            return
        backend = self._backend
        is_batch = backend.supports_coalescing
        if is_batch:
            backend._start_coalescing()
        works = [backend.send([each], rank, 0) for rank, each in sends]
        works += [backend.recv([each], rank, 0) for rank, each in receives]
        if is_batch:
            works = [backend._end_coalescing()]
        for work in works:
            work.wait()
        self._queue.wait()

    def _call(self, network: Network, call: Callable[[], None], what: str) -> None:
        """Call a library in a thread.

        Raises:
            Aborted: The generation is over, and so is the call.
        """
        done = self._done = threading.Event()
        errors: list[Exception] = []
        # A thread begins with the default stream, and NCCL follows the one that it is called in.
        stream = None if self._device.type != "cuda" else torch.cuda.current_stream(self._device)

        def run() -> None:
            try:
                with torch.cuda.stream(stream):
                    call()
            except Exception as error:  # noqa: BLE001  # raised in the worker's own thread
                errors.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name="device-messages", daemon=True).start()
        try:
            network.await_event(done, what)
            for error in errors:
                # A survivor's error may be known before the agent has reported what caused it.
                if not is_connection_error(error):
                    raise error
                network.await_abort(what)
        except Aborted:
            self._end()
            raise

    def _end(self) -> None:
        """Abort the group, and the call that is under way. Where that takes too long, the library
        may still read or write memory, so this process ends.
        """
        ended = threading.Event()

        def abort() -> None:
            if self._backend is not None:
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
