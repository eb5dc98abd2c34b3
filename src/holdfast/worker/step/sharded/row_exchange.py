"""Collectives of a sharded model: gathers of weights and exchanges of gradients.

The workers of one host read the rows of the others in their shared memory. Others, and GPUs, move
them through gloo or NCCL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.errors import JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.collectives import aborts_explained, join


class Collectives:
    """The collectives of one worker with all others.

    Args:
        context: Context of the worker.
        device: Device of the tensors.

    Raises:
        JobError: The port is in use.
    """

    def __init__(self, context: WorkerContext, device: torch.device) -> None:
        self._gathered = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._turn = 0
        self._context = context
        join(context, device)

    def gather_of(self, unit: int) -> AllGather:
        """Gathers the weights of a unit, for FSDP2."""
        return _Gather(self, unit)

    def memory_for(self, size_bytes: int) -> torch.Tensor:
        """Memory that weights are gathered into, uint8[size_bytes].

        FSDP2 copies them out before the next but one is gathered, so two ranges take turns.
        """
        self._turn = 1 - self._turn
        if len(self._gathered[self._turn]) < size_bytes:
            self._gathered[self._turn] = torch.empty(size_bytes, dtype=torch.uint8)
        return self._gathered[self._turn][:size_bytes]

    def agree(self, what: int) -> None:
        """Make sure that all workers are about to move the same.

        Args:
            what: Number of a unit that is gathered, or another number.

        Raises:
            Aborted: The generation is over.
            JobError: Another worker moves something else.
        """
        step = self._context.status[Word.COMMITTED]
        if len(set(self._context.group.barrier(WorkerTag.GATHER, step, what))) > 1:
            raise JobError(
                f"with {self._context.job.parallel.words}, the workers use other layers of the "
                f"model in step {step + 1}, or in another order; use all layers in every forward "
                "pass, or set parallel.zero=0"
            )

    def swap(self, sent: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """Implements `BlockGroup.swap`."""
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        with self.waiting():
            dist.all_to_all_single(received, torch.cat([*sent]), list(sizes), [*map(len, sent)])
        return torch.split(received, list(sizes))

    def sum(self, values: torch.Tensor) -> None:
        """Implements `BlockGroup.sum`."""
        with self.waiting():
            dist.all_reduce(values)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context for what fails if another worker is lost.

        Raises:
            Aborted: The generation is over.
        """
        status = self._context.status
        before = status.enter(Phase.WAIT_REDUCE)
        with aborts_explained(self._context.group):
            yield
        status.enter(before)


class _Gather(DefaultAllGather):
    def __init__(self, collectives: Collectives, unit: int) -> None:
        super().__init__()
        self._collectives = collectives
        self._unit = unit

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        if device.type != "cpu":  # the copy may be later
            return super().allocate(size, dtype=dtype, device=device)
        return self._collectives.memory_for(math.prod(map(int, size)) * dtype.itemsize).view(dtype)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        self._collectives.agree(self._unit)
        with self._collectives.waiting():
            return super().__call__(output_tensor, input_tensor, group, async_op)


class SentRows:
    """Exchanges of rows that are sent; implements `Exchanges`.

    Args:
        collectives: The worker's.
        size_bytes: The most that a worker sends at a time.
        device: Device of the rows.
    """

    def __init__(self, collectives: Collectives, size_bytes: int, device: torch.device) -> None:
        self._collectives = collectives
        self._sent = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        self._received = torch.zeros_like(self._sent)
        self._work: dist.Work | None = None

    def memory_for(self, size_bytes: int) -> torch.Tensor:
        """Implements `Exchanges.memory_for`."""
        return self._sent[:size_bytes]

    def begin(self, unit: int, sent: torch.Tensor) -> None:
        """Implements `Exchanges.begin`."""
        self._collectives.agree(-1 - unit)
        received = self._received[: sent.nbytes].view(sent.dtype)
        with self._collectives.waiting():
            self._work = dist.all_to_all_single(received, sent.view(-1), async_op=True)

    def end(self, sent: torch.Tensor) -> Sequence[torch.Tensor]:
        """Implements `Exchanges.end`."""
        assert self._work is not None, "an exchange that has not begun"
        with self._collectives.waiting():
            self._work.wait()
        return self._received[: sent.nbytes].view(sent.dtype).view(sent.shape).unbind()


class SharedRows:
    """Exchanges of rows that the others read in shared memory; implements `Exchanges`.

    Args:
        collectives: The worker's.
        memory: Two ranges of each worker, uint8[workers, 2, n].
        rank: This worker.
    """

    def __init__(self, collectives: Collectives, memory: torch.Tensor, rank: int) -> None:
        self._collectives = collectives
        self._memory = memory
        self._rank = rank
        self._turn = 0

    def memory_for(self, size_bytes: int) -> torch.Tensor:
        """Implements `Exchanges.memory_for`."""
        # The others have read what was there two exchanges ago, as they began the one since.
        self._turn = 1 - self._turn
        return self._memory[self._rank, self._turn, :size_bytes]

    def begin(self, unit: int, sent: torch.Tensor) -> None:  # noqa: ARG002  # the protocol's
        """Implements `Exchanges.begin`."""
        self._collectives.agree(-1 - unit)

    def end(self, sent: torch.Tensor) -> Sequence[torch.Tensor]:
        """Implements `Exchanges.end`."""
        of_all = self._memory[:, self._turn, : sent.nbytes].view(sent.dtype)
        return [each.view(sent.shape)[self._rank] for each in of_all]
