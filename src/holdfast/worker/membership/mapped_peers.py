"""Mapped peers: how the workers of a host come to read each other's device memory.

    allocate ─▶ offer to the agent ─▶ halt ─▶ resumed: open that of others ─▶ probe ─▶ agree
                                                                               └▶ staged instead

A copy from another GPU may be wrong without an error, for example behind an IOMMU that is set up
wrongly (pytorch#84803). So each worker first reads a pattern from every other one, in every
generation, and all of a host map each other or none does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from holdfast.arena.device.mapped import MappedMemory
from holdfast.arena.device.memory import PROBE_BYTES, pattern
from holdfast.arena.intact_replicas import has_progress
from holdfast.arena.memory import Arena
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.device_queue import DeviceQueue
from holdfast.errors import JobError
from holdfast.rundir.run_directory import log_event
from holdfast.worker.context import WorkerContext
from holdfast.worker.membership.attach import AttachedModels


class MappedPeers:
    """One worker's part.

    Args:
        models: Models of this worker, whose memory it allocates.
        context: Context of this worker.
        arena: The host's shared memory.
        run_dir: Directory for an event if memory cannot be mapped.
    """

    def __init__(
        self, models: AttachedModels, context: WorkerContext, arena: Arena, run_dir: Path
    ) -> None:
        self._models = models
        self._group = context.group
        self._agent = context.agent
        self._must_map = context.job.exchange == "mapped"
        self._arena = arena
        self._run_dir = run_dir
        self._queue = DeviceQueue(models.device)
        self._is_shared = False
        self._has_told = False

    def share(self) -> None:
        """Let others map the memory of this worker, before it halts for the first time; find the
        state that the worker before it has left on its device.
        """
        if self._is_shared:
            return
        self._is_shared = True
        mapped = self._models.mapped
        fd = self._agent.left_memory()
        if fd is not None and mapped is not None:
            self._find_left(mapped, fd)
        elif fd is not None:
            os.close(fd)  # so that its memory is free: there was too little for another one
        if mapped is not None:
            self._agent.offer_memory(mapped.fd)

    def _find_left(self, mapped: MappedMemory, fd: int) -> None:
        rank = self._group.rank
        try:
            mapped.open(rank, fd)
        except OSError:  # the run continues from a snapshot or a checkpoint
            return
        left = mapped.left_by(rank)
        if left is not None and has_progress(self._arena, rank, left):
            self._agent.note_left(left.step)

    def forget_left(self) -> None:
        """Forget what the worker before this one has left: this one has a state."""
        if self._models.mapped is not None:
            self._models.mapped.forget(self._group.rank)
            self._agent.note_left(None)

    def open(self, step: int) -> None:
        """Read what the members of this generation map, and no longer what lost ones have left.

        Args:
            step: Steps committed in the state from which all resume.

        Raises:
            Aborted: The generation is over.
            JobError: They cannot be read, and the job says that they must.
        """
        if not self._models.maps_memory:
            return
        group = self._group
        # Until here a member may have needed the share of a lost one, or of this one.
        group.local_barrier(WorkerTag.MAPPED, step)
        problem = self._open_all()
        answers = group.local_barrier(WorkerTag.MAPPED, step, int(bool(problem)))
        # All have what they read, or none reads.
        if not any(answers):
            problem = self._probe(step)
            answers = group.local_barrier(WorkerTag.MAPPED, step, int(bool(problem)))
        if self._models.mapped is not None:
            self._models.mapped.is_readable = not any(answers)
        if any(answers):
            self._tell(problem, [r for r, bad in zip(group.local, answers, strict=True) if bad])

    def _tell(self, problem: str, ranks: Sequence[int]) -> None:
        """Note why memory cannot be mapped.

        Raises:
            JobError: The job says that it must.
        """
        if self._must_map:
            problem = problem or f"rank {ranks[0]} cannot map or read the memory of another rank"
            raise JobError(f"exchange=mapped does not work here: {problem}; set exchange=staged")
        self._models.stage()
        if problem and not self._has_told:
            self._has_told = True
            rank = self._group.rank
            log_event(self._run_dir, "memory-not-mapped", rank=rank, reason=problem)

    def _open_all(self) -> str:
        """Open the memory of all other members; returns why that failed, or nothing."""
        mapped = self._models.mapped
        memory = self._agent.take_memory()
        if mapped is None:
            for fd in memory.values():
                os.close(fd)
            return self._models.why_not_mapped
        own_rank = self._group.rank
        for rank in set(range(self._arena.world_size)) - {own_rank}:
            mapped.forget(rank)
        problems = []
        for rank, fd in memory.items():
            try:
                mapped.open(rank, fd)
            except OSError as error:
                problems.append(f"the memory of rank {rank} cannot be mapped: {error}")
        missing = set(self._group.local) - memory.keys() - {own_rank}
        return "; ".join([*problems, *(f"rank {rank} offers none" for rank in sorted(missing))])

    def _probe(self, step: int) -> str:
        """Read a pattern from all other members; returns what is wrong with it, or nothing."""
        mapped = self._models.mapped
        assert mapped is not None, "memory was opened"
        # The share is free: no member reads one before the next reduction.
        share = mapped.share[:PROBE_BYTES]
        share.copy_(pattern(self._group.rank, share))
        self._queue.wait()
        self._group.local_barrier(WorkerTag.MAPPED, step)
        content = torch.empty_like(share)
        for rank in set(self._group.local) - {self._group.rank}:
            mapped.read_share(rank, 0, content)
            if not torch.equal(content, pattern(rank, content)):
                return f"what is read from rank {rank} differs from what it has written"
        return ""
