"""Collective times: how long the worker of a script waits in collectives, as the phase `reduce`.

    work.wait() ────────────────────────▶ of what Python has started: all_reduce, barrier, …
    loss.backward() ─ last gradient ─▶ begin ─ DistributedDataParallel waits ─▶ end

PyTorch has a hook on collectives for NCCL only. What is measured is the time of the host, which
does not wait for a GPU.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import torch
from torch.distributed import Work
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from holdfast.arena.memory import Phase
from holdfast.arena.worker_status import WorkerStatus


class CollectiveTimes:
    """The collectives of one worker's script.

    Args:
        status: Status in which the time is counted.
    """

    def __init__(self, status: WorkerStatus) -> None:
        self._status = status
        self._pid = os.getpid()

    def begin(self) -> None:
        """Measure in this process from now on."""
        wait = Work.wait
        forward = DistributedDataParallel.forward

        @functools.wraps(wait)
        def measured(work: Work, *arguments: Any, **more: Any) -> bool:
            began = time.monotonic_ns()
            try:
                return wait(work, *arguments, **more)
            finally:
                self._count(began)

        @functools.wraps(forward)
        def awaited(model: DistributedDataParallel, *inputs: Any, **more: Any) -> Any:
            output = forward(model, *inputs, **more)  # type: ignore[no-untyped-call]
            if not torch.compiler.is_compiling():
                for each in tree_leaves(output):
                    if isinstance(each, torch.Tensor) and each.requires_grad:
                        each.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
            return output

        Work.wait = measured  # type: ignore[assignment, method-assign]
        DistributedDataParallel.forward = awaited  # type: ignore[assignment, method-assign]

    def _on_backward(self, _: torch.Tensor) -> None:
        """Called before DistributedDataParallel sees a gradient, so that what is queued here runs
        before it waits, and what is queued then runs after it.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback

        def begin() -> None:
            began = time.monotonic_ns()
            queue(lambda: self._count(began))

        queue(begin)

    def _count(self, began: int) -> None:
        if os.getpid() == self._pid:  # else the script has forked this process
            self._status.count(Phase.REDUCE, began)
