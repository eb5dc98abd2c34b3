"""Journal: what a worker leaves outside itself: metrics, and its part of every checkpoint."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.arena.replica import Replica
from holdfast.checkpoint import manifest
from holdfast.checkpoint.manifest import Header, Tensor
from holdfast.checkpoint.save import write_part
from holdfast.collectives.group import Group
from holdfast.core.protocol import Part
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.observe import lines
from holdfast.observe.run_dir import EVENTS, METRICS
from holdfast.wire.channel import Channel
from holdfast.wire.messages import CheckpointResultMessage, PartWrittenMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import numerics_of
from holdfast.worker.checks.self_test import sensitive_kernels
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress
from holdfast.worker.restore import Restorer


class Recorder:
    """Writes for one worker.

    Args:
        launch: The worker's orders.
        channel: To its agent.
    """

    def __init__(self, launch: WorkerSpec, channel: Channel) -> None:
        self._launch, self._channel = launch, channel
        self._run_dir = Path(launch.run_dir)
        self._metrics: lines.JsonLines | None = None
        self._begun = (0, 0)  # a generation, and the checkpoints begun in it
        self._evaluated_step = -1
        self._samples, self._seconds = 0, 0.0
        self._last_step_at: float | None = None

    def restore(self, replica: Replica, group: Group, checkpoints: Sequence[str]) -> Progress:
        """Take the state of the best of `checkpoints`; see `worker.restore`."""
        restorer = Restorer(self._launch, self._channel)
        return restorer.restore(replica, group, [Path(each) for each in checkpoints])

    def take_up(self, progress: Progress, *, writes: bool) -> None:
        """Begin to keep the metrics if this worker is to, where another has left off perhaps."""
        if not writes:
            if self._metrics is not None:
                self._metrics.close()
            self._metrics = None
        elif self._metrics is None:
            path = self._run_dir / METRICS
            newest = lines.forget_after(path, progress.step)
            self._metrics = lines.JsonLines(path)
            noted = [entry for entry in newest if entry["step"] == progress.step]
            if progress.record and not any("loss" in entry for entry in noted):
                self._metrics.write(**progress.record)
            if any("evaluation" in entry for entry in noted):
                self._evaluated_step = progress.step
            elif progress.followup.calls and not progress.followup.pending:  # who had to is gone
                self.evaluation(progress.step, progress.evaluations.results[0])

    def step(self, record: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Note a committed step, and the seconds that this worker spent in each phase of it."""
        now = time.monotonic()
        seconds = None if self._last_step_at is None else now - self._last_step_at
        if seconds is not None:
            self._samples += record["samples"]
            self._seconds += seconds
        self._last_step_at = now
        if self._metrics is not None:
            now_s = round(time.time(), 6)
            self._metrics.write(**record, seconds=seconds, phases=phases, time_unix_s=now_s)

    def evaluation(self, step: int, results: dict[str, float]) -> None:
        """Note the results of an evaluation after `step` steps, once."""
        if self._metrics is not None and self._evaluated_step != step:
            self._evaluated_step = step
            measured = {name: lines.number(value) for name, value in results.items()}
            self._metrics.write(step=step, evaluation=measured)

    def begun_in(self, generation: int) -> int:
        """How many checkpoints this worker has begun in a generation."""
        return self._begun[1] if self._begun[0] == generation else 0

    def write_part(self, context: WorkerContext, replica: Replica, progress: Progress) -> Part:
        """Write this worker's part of a checkpoint; where that fails, the part holds the error."""
        group, step = context.group, progress.step
        rank, generation = group.rank, group.generation
        number = self.begun_in(generation) + 1
        self._begun = (generation, number)
        attempt = manifest.attempt_in(generation, self._launch.attempt)
        temporary = self._run_dir / "checkpoints" / manifest.temporary_name(step, attempt)
        flat, of = replica.flat.cpu(), len(group.members)
        try:
            context.failpoints.at_part()
            file = write_part(temporary, flat, replica.layout, group.member_index, of)
        except OSError as error:
            return Part(number=number, step=step, error=f"rank {rank}: {error}")
        content = {"file": file.model_dump(mode="json")}
        if group.member_index == 0:
            content["header"] = self._header(replica, progress, generation)
        return Part(number=number, step=step, content=content)

    def commit_part(self, part: Part, group: Group, progress: Progress, *, final: bool) -> None:
        """Report this worker's part of a checkpoint and wait until all of it is committed.

        If that fails, training continues with the older checkpoints, unless this one is `final`.

        Raises:
            CheckpointError: It is final and could not be committed.
        """
        self._channel.send(PartWrittenMessage(generation=group.generation, part=part))
        problem = await_commit(self._channel, group, part.number, self._launch.job.timeout_s)
        if not problem:
            progress.saved_step = part.step
        elif final:
            raise CheckpointError(
                f"the checkpoint of step {part.step} could not be written: {problem}; "
                "free the disk and resume from the one before"
            )

    def kernels_tested(self) -> None:
        """Note which kernels of this host give other bits by alignment or by rows."""
        found = sensitive_kernels()
        with lines.EventLog(self._run_dir / EVENTS) as log:
            log.event(
                "kernels-tested",
                alignment_sensitive=", ".join(found.alignment_sensitive) or "none",
                batch_sensitive=", ".join(found.batch_sensitive) or "none",
            )

    def throughput(self) -> dict[str, float | None]:
        """Samples a second since the first step, checkpoints and evaluations included."""
        rate = round(self._samples / self._seconds, 1) if self._samples else None
        return {"samples_per_s": rate}

    def _header(self, replica: Replica, progress: Progress, generation: int) -> dict[str, Any]:
        layout = replica.layout
        return Header(
            step=progress.step,
            generation=generation,
            weights_config=self._launch.job.weights_config(),
            tensors=tuple(
                Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset)
                for e in layout.entries
            ),
            size_bytes=layout.size_bytes,
            uninitialized=tuple(sorted(replica.uninitialized)),
            state=progress.user.committed_state,
            user_state=progress.user.captured,
            loss=progress.loss,
            metrics=progress.evaluations.metrics,
            best=progress.evaluations.best,
            order=progress.order,
            numerics=numerics_of(self._launch.train_job, replica.flat.device),
            numerics_changes=tuple(progress.numerics_changes),
            versions={
                "holdfast": metadata.version("holdfast"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        ).model_dump(mode="json")


def await_commit(channel: Channel, group: Group, number: int, timeout_s: float) -> str:
    """Wait for word on a checkpoint: why there is none, or nothing if there is one.

    Args:
        channel: To the agent.
        group: Those who write it.
        number: Of the checkpoints of the generation.
        timeout_s: How long to wait, seconds.

    Raises:
        Aborted: The generation is over, noticed within `NAP_S`.
        HoldfastError: There was no word in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        group.check_abort()
        for message in channel.poll(ABORT_POLL_S):
            if isinstance(message, CheckpointResultMessage) and message.number == number:
                return message.error
    raise HoldfastError(f"no word on a checkpoint in {timeout_s:.0f} s")
