"""CheckpointWriter: one worker's part of every checkpoint, from the request to its result."""

from __future__ import annotations

import json
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.arena.replica import Replica
from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Header, HuggingFaceModel, Tensor
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.writer import write_part
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.protocol import Part
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.wire.channel import Channel
from holdfast.wire.messages import CheckpointResultMessage, PartWrittenMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import numerics_of
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress


class CheckpointWriter:
    """Writes for one worker.

    Args:
        spec: What the worker runs.
        channel: To its agent.
    """

    def __init__(self, spec: WorkerSpec, channel: Channel) -> None:
        self._spec, self._channel = spec, channel
        self._storage = CheckpointStore.of_run(Path(spec.run_dir)).storage
        self._seal = Seal.of(spec.job.checkpoint)
        self._begun = (0, 0)  # a generation, and the checkpoints begun in it

    def begun_in(self, generation: int) -> int:
        """How many checkpoints this worker has begun in a generation."""
        return self._begun[1] if self._begun[0] == generation else 0

    def write_part(self, context: WorkerContext, replica: Replica, progress: Progress) -> Part:
        """Write this worker's part of a checkpoint; if that fails, the part holds the error."""
        group, step = context.group, progress.step
        rank, generation = group.rank, group.generation
        number = self.begun_in(generation) + 1
        self._begun = (generation, number)
        draft = names.draft_name(step, names.attempt_in(generation, self._spec.attempt))
        state, local = replica.flat.cpu().numpy().data, group.local
        try:
            context.failpoints.at_part()
            file = write_part(
                self._storage,
                draft,
                state,
                replica.layout,
                local.index(rank),
                len(local),
                self._seal,
            )
        except OSError as error:
            return Part(number=number, step=step, error=f"rank {rank}: {error}")
        content = {"file": file.model_dump(mode="json")}
        if rank == local[0]:
            content["header"] = self._header(replica, progress, generation)
        return Part(number=number, step=step, content=content)

    def commit_part(self, part: Part, group: Group, progress: Progress, *, final: bool) -> None:
        """Report this worker's part of a checkpoint and wait until all of it is committed.

        It counts if at least one host has it. Otherwise training continues with the older
        checkpoints, unless this one is `final`.

        Raises:
            Aborted: The generation is over.
            CheckpointError: The checkpoint is final and could not be committed.
        """
        self._channel.send(PartWrittenMessage(generation=group.generation, part=part))
        problem = await_commit(self._channel, group, part.number, self._spec.job.timeout_s)
        if any(group.barrier(WorkerTag.SAVED, part.step, not problem)):
            progress.saved_step = part.step
        elif final:
            raise CheckpointError(
                f"the checkpoint of step {part.step} could not be written: {problem}; "
                "free the disk and resume from the previous checkpoint"
            )

    def _header(self, replica: Replica, progress: Progress, generation: int) -> dict[str, Any]:
        layout = replica.layout
        return Header(
            step=progress.step,
            generation=generation,
            weights_config=self._spec.job.weights_config(),
            tensors=tuple(
                Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset)
                for e in layout.entries
            ),
            size_bytes=layout.size_bytes,
            uninitialized=tuple(sorted(replica.uninitialized)),
            state_dicts=replica.state_dicts,
            hugging_face=hugging_face_model(replica.model),
            state=progress.user.committed_state,
            user_state=progress.user.captured,
            loss_scale=progress.loss_scale,
            costs=tuple(progress.costs),
            loss=progress.loss,
            metrics=progress.evaluations.metrics,
            best=progress.evaluations.best,
            order=progress.order,
            numerics=numerics_of(self._spec.train_job, replica.flat.device),
            numerics_changes=tuple(progress.numerics_changes),
            versions={
                "holdfast": metadata.version("holdfast"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        ).model_dump(mode="json")


def hugging_face_model(model: nn.Module) -> HuggingFaceModel | None:
    """The model of the library transformers in `model`, if there is one; does not import it."""
    for name, module in model.named_modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "model_type") and hasattr(config, "to_json_string"):
            values = json.loads(config.to_json_string(use_diff=False))
            values["architectures"] = [type(module).__name__]
            return HuggingFaceModel(prefix=name and f"{name}.", config=values)
    return None


def await_commit(channel: Channel, group: Group, number: int, timeout_s: float) -> str:
    """Wait for the result of a checkpoint on this host; returns why it failed, or nothing if it is
    committed.

    Args:
        channel: To the agent.
        group: The members that write it.
        number: The number of the checkpoint in its generation.
        timeout_s: How long to wait.

    Raises:
        Aborted: The generation is over, noticed within `ABORT_POLL_S`.
        HoldfastError: There was no result in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        group.check_abort()
        for message in channel.poll(ABORT_POLL_S):
            if isinstance(message, CheckpointResultMessage) and message.number == number:
                return message.error
    raise HoldfastError(f"no checkpoint result after {timeout_s:.0f} s; see logs/agent.log")
