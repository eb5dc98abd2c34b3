"""CheckpointSaver: one worker's share of every checkpoint, from the request to its result.

A worker copies its share to a buffer of the arena and trains on. The rest is done by others: see
`arena.staging`. In place of a barrier it sends digests of what the other workers of its host copy,
made from its own replica: a checkpoint in which replicas differ is never committed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.arena.memory import ABORT_POLL_S, Arena, Phase
from holdfast.arena.replica import Replica
from holdfast.arena.staging import Staging
from holdfast.checkpoint import parts
from holdfast.checkpoint.parts import DigestKind
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.protocol import CheckpointPart
from holdfast.errors import CheckpointError, HardwareError, HoldfastError
from holdfast.rundir.run_directory import log_event
from holdfast.wire.channel import Channel
from holdfast.wire.messages import CheckpointResultMessage, PartStagedMessage, StagingMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.agent_link import SelfEviction
from holdfast.worker.checkpoints.header import header_of
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.collectives import broadcast
from holdfast.worker.progress import Progress
from holdfast.worker.step.commit import RequestFlags

SNAPSHOT_SHARE: Final = 0.03
"""The share of the time that snapshots may take."""
LONG_WAIT_S: Final = 1.0
"""A checkpoint that waits for longer is worth an event."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The newest checkpoint that a worker has begun.

    Attributes:
        generation: The generation in which it was begun.
        number: Its number in that generation, from 1; 0 for none.
        save: The number of the newest one that is no snapshot.
        step: The step of that one.
    """

    generation: int = 0
    number: int = 0
    save: int = 0
    step: int = -1


class Results:
    """The results of the checkpoints of a generation, as they come from the agent.

    Args:
        channel: To the agent.
        group: The members.
        timeout_s: Limit of any wait, seconds.
    """

    def __init__(self, channel: Channel, group: Group, timeout_s: float) -> None:
        self._channel = channel
        self._group = group
        self._timeout_s = timeout_s
        self._errors: dict[int, str] = {}

    def begin_generation(self) -> None:
        """Forget the results of the generation before. No more of them come: a worker has read all
        messages before the one that begins the next generation.
        """
        self._errors.clear()

    def of(self, number: int) -> str:
        """Wait for a result; returns why the checkpoint failed, or nothing if it is committed.

        Raises:
            Aborted: The generation is over, noticed within `ABORT_POLL_S`.
            HoldfastError: It took too long.
        """
        self.wait(lambda: number in self._errors, "its result")
        return self._errors[number]

    def wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait for `what`; as `of`."""
        deadline = time.monotonic() + self._timeout_s
        wait_s = 0.0
        while True:
            for message in self._channel.poll(wait_s):
                if isinstance(message, CheckpointResultMessage):
                    self._errors[message.number] = message.error
            if is_done():
                return
            self._group.check_abort()
            if time.monotonic() > deadline:
                raise HoldfastError(
                    f"a checkpoint has waited {self._timeout_s:.0f} s for {what}; see "
                    "logs/agent.log"
                )
            wait_s = ABORT_POLL_S


class CheckpointSaver:
    """Saves for one worker.

    Args:
        spec: Specification of the worker.
        channel: To its agent.
        context: Context of the worker.
        replica: Its state.
        staging: Buffers in which checkpoints of its host wait to be written.
        progress: Progress of the run.
        compare: Compares all of the state with that of the other members.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        channel: Channel,
        context: WorkerContext,
        replica: Replica,
        staging: Staging,
        progress: Progress,
        compare: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._channel = channel
        self._context = context
        self._replica = replica
        self._staging = staging
        self._progress = progress
        self._group = context.group
        self._compare = compare
        self._begun = Begun()
        self._results = Results(channel, context.group, spec.job.timeout_s)
        self._staged_at = -math.inf
        self._stall_s = 0.0
        self._unsent: PartStagedMessage | None = None

    def requests(self, arena: Arena) -> RequestFlags:
        """Requests for checkpoints that this worker has seen. From here on, its replica may be
        updated.
        """
        # From here on the replica may be updated, so a GPU's copy of it must be complete.
        self._finish_part()
        seen = {
            RequestFlags.SAVE: arena.save_requested > self._current.save,
            RequestFlags.COMPARE: arena.comparison_requested,
            RequestFlags.BUSY: not self._staging.is_free(self._current.number + 1),
            RequestFlags.SNAPSHOT: self._is_snapshot_due,
        }
        return RequestFlags(sum(flag for flag, is_seen in seen.items() if is_seen))

    def announce(self) -> None:
        """Tell the agent where checkpoints will be staged, so that there is memory by then."""
        offset, size_bytes = self._staging.place
        self._channel.send(StagingMessage(offset=offset, size_bytes=size_bytes))

    def save(self) -> None:
        """Begin a checkpoint with the others, unless there is one of this step.

        Raises:
            Aborted: The generation is over.
            SelfEviction: Replicas differ.
        """
        self._begin(in_memory=False)
        self._progress.deferred = False

    def keep_snapshot(self) -> None:
        """Keep the state of this step in memory, with the others, unless there is a checkpoint.

        Raises:
            Aborted: The generation is over.
            SelfEviction: Replicas differ.
        """
        self._begin(in_memory=True)

    def save_or_defer(self) -> None:
        """Save, but in a later step if some worker would have to wait until checkpoints before this
        one are written.
        """
        progress = self._progress
        if not progress.followup.is_busy or self._spec.job.checkpoint.busy == "wait":
            self.save()
        elif not progress.deferred:
            progress.deferred = True
            if self._group.member_index == 0:
                log_event(Path(self._spec.run_dir), "checkpoint-deferred", step=progress.step)

    def save_durably(self) -> None:
        """Have a checkpoint of this step, and wait until it is committed.

        Raises:
            Aborted: The generation is over.
            SelfEviction: Replicas differ.
            CheckpointError: No host can write it.
        """
        step = self._progress.step
        if step == self._progress.saved_step:
            return
        self._context.status.enter(Phase.CHECKPOINT)
        self.compare()
        # One of this step is on its way: wait for that one, and write another only if it fails.
        if self._is_begun and not self._await_result():
            return
        self._stage()
        if problem := self._await_result():
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written: {problem}; free the disk and "
                "resume from the previous checkpoint"
            )

    def compare(self) -> None:
        """Compare all of the state with that of the other members.

        Raises:
            Aborted: The generation is over.
            SelfEviction: It differs.
        """
        try:
            self._compare()
        except HardwareError as error:
            raise SelfEviction(error) from None

    @property
    def _is_snapshot_due(self) -> bool:
        """True if this is the first member, and the time that snapshots may take allows one."""
        job = self._spec.train_job
        on_gpu = self._replica.flat.device.type != "cpu"
        if self._group.member_index or not job.keeps_snapshots(on_gpu=on_gpu):
            return False
        return time.monotonic() > self._staged_at + self._stall_s / SNAPSHOT_SHARE

    @property
    def _is_begun(self) -> bool:
        """True if this worker has begun a checkpoint of this step in its generation."""
        return self._current.save > 0 and self._current.step == self._progress.step

    @property
    def _current(self) -> Begun:
        """Newest checkpoint that this worker has begun in its generation."""
        generation = self._group.generation
        return self._begun if self._begun.generation == generation else Begun(generation)

    def _begin(self, *, in_memory: bool) -> None:
        """Begin a checkpoint or a snapshot, unless there is one of this step."""
        if not self._is_begun and self._progress.step != self._progress.saved_step:
            if self._replica.flat.device.type != "cpu":  # whose bytes no other process can read
                self.compare()
            self._stage(in_memory=in_memory)

    def _stage(self, *, in_memory: bool = False) -> None:
        """Copy this worker's share to a buffer, once that is free, and tell the agent; from a GPU,
        at `_finish_part`.
        """
        self._finish_part()
        began = time.monotonic()
        self._context.status.enter(Phase.CHECKPOINT)
        group = self._group
        step = self._progress.step
        current = self._current
        number = current.number + 1
        # Numbers start again with each generation, so results of the last one must not be taken for
        # them.
        if number == 1:
            self._results.begin_generation()
        # Wait for a buffer: the writer may be slower than checkpoints are requested.
        free = partial(self._staging.is_free, number)
        self._results.wait(free, "earlier ones to be written")
        self._log_wait(step, time.monotonic() - began)
        # Begun on this worker: a failure from here on is part of its result, not of the step.
        begun = replace(current, number=number)
        self._begun = begun if in_memory else replace(begun, save=number, step=step)
        content = dict[str, Any]()
        error = ""
        if group.network is not None and self._replica.of_ranks:
            self._stage_others(number)
        try:
            self._context.failpoints.at_part()
            content = self._staged(number)
        except OSError as failure:
            error = f"rank {group.rank}: {failure}"
        # From here on the worker trains; the agent and its writer do the rest.
        self._staged_at = time.monotonic()
        self._stall_s = self._staged_at - began
        part = CheckpointPart(
            number=number,
            step=step,
            count=len(group.local),
            stall_s=self._stall_s,
            content=content,
            error=error,
            in_memory=in_memory,
        )
        self._unsent = PartStagedMessage(generation=group.generation, part=part)
        # The copy is complete. A GPU still copies: it is finished before the next update.
        if self._replica.flat.device.type == "cpu":
            self._finish_part()

    def _log_wait(self, step: int, seconds: float) -> None:
        """Write down that a checkpoint had to wait, if it was long."""
        if seconds > LONG_WAIT_S and self._group.member_index == 0:
            run_dir = Path(self._spec.run_dir)
            log_event(run_dir, "checkpoint-waited", step=step, seconds=round(seconds, 1))

    def _finish_part(self) -> None:
        """Wait until the newest share is copied, and tell the agent. A share of an earlier
        generation may hold a replica that has been updated since.
        """
        unsent = self._unsent
        self._unsent = None
        if unsent is None:
            return
        self._staging.finish_copy()
        if unsent.generation == self._group.generation:
            self._channel.send(unsent)

    def _stage_others(self, number: int) -> None:
        """Copy the parts that workers of other hosts hold: every host keeps whole checkpoints.

        Raises:
            Aborted: The generation is over.
        """
        group = self._group
        flat = self._replica.flat
        received = torch.empty(parts.CHUNK_BYTES, dtype=torch.uint8, device=flat.device)
        for rank, holding in enumerate(self._replica.of_ranks):
            is_needed = rank not in group.local and group.rank == group.local[0]
            for start in range(0, holding.own.size_bytes, parts.CHUNK_BYTES):
                end = min(start + parts.CHUNK_BYTES, holding.own.size_bytes)
                memory = flat[start:end] if rank == group.rank else received[: end - start]
                broadcast(memory, rank, group)
                for piece in holding.within(start, end) if is_needed else ():
                    at = piece.own - start
                    self._staging.copy(number, piece.start, memory[at : at + piece.size])
                # The next chunk is received in the same memory.
                self._staging.finish_copy()

    def _staged(self, number: int) -> dict[str, Any]:
        """Copy this worker's share; returns the content of its part."""
        group = self._group
        replica = self._replica
        size_bytes = replica.holding.whole.size_bytes
        index = group.local.index(group.rank)
        count = len(group.local)
        # The workers of a host share the copying: each has its own chunks of the state, or holds a
        # part of it only.
        own = parts.chunks_of(index, count, size_bytes)
        copied = parts.byte_range(own, size_bytes) if replica.holding.is_all else (0, size_bytes)
        for piece in replica.holding.between(*copied):
            memory = replica.flat[piece.own : piece.own + piece.size]
            self._staging.copy(number, piece.start, memory)
        content: dict[str, Any] = {"others": _digests_of_others(replica, own, count)}
        # One of them says where it all is, and what belongs to the state besides tensors.
        if index == 0:
            content["offset"] = self._staging.offset(number)
            header = header_of(self._spec, replica, self._progress, group.generation)
            content["header"] = header
        return content

    def _await_result(self) -> str:
        """Wait for the result of the newest checkpoint; returns why it failed, or nothing if at
        least one host has it.

        Raises:
            Aborted: The generation is over, noticed within `ABORT_POLL_S`.
        """
        self._finish_part()
        number = self._begun.save
        step = self._begun.step
        problem = self._results.of(number)
        # One host that has written it is enough; all members decide alike.
        if not any(self._group.barrier(WorkerTag.SAVED, step, not problem)):
            return problem
        self._progress.saved_step = step
        return ""


def _digests_of_others(replica: Replica, own: range, count: int) -> list[str]:
    """The digest of each chunk of a replica in the CPU's memory, empty for the `own` ones; XXH3
    also where the checkpoint is signed, because training waits for it.
    """
    if count == 1 or replica.flat.device.type != "cpu" or not replica.holding.is_all:
        return []
    state = replica.flat.numpy().data
    size_bytes = replica.layout.size_bytes
    digests = []
    for number in range(parts.num_chunks(size_bytes)):
        start, end = parts.byte_range(range(number, number + 1), size_bytes)
        digests.append("" if number in own else parts.digest(state[start:end], DigestKind.XXH3))
    return digests
