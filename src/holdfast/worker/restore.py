"""Restore: which checkpoint the members of a generation resume from, and loading it.

Members may see different checkpoints: hosts with disks of their own list different ones, and one
host may find damage that another does not. They agree through barrier values, in rounds:

    1. each offers the newest step that it has left; the lowest offer is the candidate
    2. a member that offered a newer step passes over all newer ones, and all offer again
    3. where all offered the candidate, each verifies it and shows the digest of its state
    4. where all digests are equal the members load it; else all pass over it and offer again

All decide by the same values, so they reach the same barriers, and every round leaves some member
with fewer checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from holdfast.arena.replica import Replica
from holdfast.checkpoint import manifest
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.restore import read_state
from holdfast.collectives.group import Group
from holdfast.errors import CheckpointError, JobError
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import EVENTS
from holdfast.wire.channel import Channel
from holdfast.wire.messages import CheckpointRejectedMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.checks.numerics import changes, numerics_of
from holdfast.worker.progress import Evaluations, Progress
from holdfast.worker.user_state.user_values import UserValues

_NONE: Final = -1
"""The offer of a member without a checkpoint left, and the digest of one that it cannot verify."""


@dataclass(frozen=True, slots=True)
class _Verified:
    """A checkpoint's manifest and its state, uint8[size_bytes]."""

    manifest: Manifest
    state: torch.Tensor

    @property
    def digest(self) -> int:
        """63 bits that tell two states apart."""
        return int(self.manifest.root[:16], 16) >> 1


class Restorer:
    """Loads a checkpoint into one worker.

    Args:
        launch: The worker's orders.
        channel: To its agent.
    """

    def __init__(self, launch: WorkerSpec, channel: Channel) -> None:
        self._launch, self._channel = launch, channel
        self._refusals: list[str] = []

    def restore(self, replica: Replica, group: Group, checkpoints: Sequence[Path]) -> Progress:
        """Load the newest checkpoint that all members have and can verify.

        Args:
            replica: Takes the state.
            group: The members.
            checkpoints: The directories that this member's host has.

        Returns:
            The progress stored with it; no steps where no member has a checkpoint.

        Raises:
            Aborted: The generation is over.
            CheckpointError: A member has checkpoints, and there is none that all can use.
            JobError: It was made on other hardware or software, which the job refuses.
        """
        left = sorted(checkpoints, key=manifest.step_of, reverse=True)
        passed_over, any_offered = list[Path](), False
        while True:
            offers = group.barrier(WorkerTag.RESTORE, 0, _newest(left))
            any_offered |= max(offers) != _NONE
            candidate = min(offers)
            if candidate == _NONE:
                break
            if max(offers) > candidate:
                while _newest(left) > candidate:
                    self._refuse(left[0], "another member of the generation does not have it")
                    passed_over.append(left.pop(0))
                continue
            directory = left.pop(0)
            found = self._verified(directory, replica)
            digests = group.barrier(WorkerTag.RESTORE, 0, _NONE if found is None else found.digest)
            if found is not None and set(digests) == {found.digest}:
                changed = self._numerics_changes(
                    found.manifest, replica, first=group.member_index == 0
                )
                _set_aside(passed_over)
                return _load(found, replica, changed)
            passed_over.append(directory)
            if _NONE not in digests:
                self._refuse(directory, "members of the generation have different states for it")
        if any_offered:
            raise CheckpointError(
                f"no checkpoint under {self._launch.run_dir} can be used: "
                f"{'; '.join(self._refusals) or 'this host has none'}. "
                "Start the job again in another directory"
            )
        return Progress()

    def _verified(self, directory: Path, replica: Replica) -> _Verified | None:
        try:
            found = manifest.read(directory)
            self._check_lineage(directory, found)
            return _Verified(found, read_state(directory, found, replica.layout))
        except CheckpointError as error:
            self._refuse(directory, str(error))
            return None

    def _check_lineage(self, directory: Path, found: Manifest) -> None:
        """Raises: CheckpointError: A job with other weights has written it."""
        job = self._launch.job.weights_config()
        for key in job:
            stored = found.weights_config.get(
                key, job[key]
            )  # an older version does not know every key
            if stored != job[key]:
                raise CheckpointError(
                    f"{directory} is of a job with {key}={stored}, not {job[key]}: it belongs to "
                    "another run"
                )

    def _numerics_changes(self, found: Manifest, replica: Replica, *, first: bool) -> list[str]:
        """How hardware and software differ from those that a checkpoint was made with.

        Raises:
            JobError: They do, and the job does not accept that.
        """
        changed = changes(found.numerics, numerics_of(self._launch.train_job, replica.flat.device))
        if changed and self._launch.train_job.on_numerics_change == "fail":
            raise JobError(
                f"the checkpoint of step {found.step} was made on other hardware or software: "
                f"{', '.join(changed)}. The weights would not be bit-exact; resume where it was "
                "made, or set on_numerics_change=record to continue with a note in the result"
            )
        if changed and first:
            with EventLog(Path(self._launch.run_dir) / EVENTS) as log:
                log.event("numerics-changed", step=found.step, changes=", ".join(changed))
        return changed

    def _refuse(self, directory: Path, reason: str) -> None:
        self._refusals.append(f"{directory.name}: {reason}")
        self._channel.send(
            CheckpointRejectedMessage(
                rank=self._launch.rank, directory=str(directory), reason=reason
            )
        )


def _newest(left: Sequence[Path]) -> int:
    return manifest.step_of(left[0]) if left else _NONE


def _load(found: _Verified, replica: Replica, changed: list[str]) -> Progress:
    """Fill the replica; returns the progress.

    Samples that were computed with other numerics may differ in their bits and are not compared.
    """
    stored = found.manifest
    left_out = {"samples"} if changed else set()
    replica.flat.copy_(found.state)
    replica.restored(frozenset(stored.uninitialized))
    progress = Progress(
        step=stored.step,
        loss=stored.loss,
        order={key: value for key, value in stored.order.items() if key not in left_out},
        numerics_changes=list(dict.fromkeys([*stored.numerics_changes, *changed])),
        saved_step=stored.step,
        evaluations=Evaluations(
            metrics=stored.metrics, best=stored.best, previous_best=stored.best
        ),
        user=UserValues(state=stored.state),
    )
    progress.user.commit(stored.user_state)
    return progress


def _set_aside(passed_over: Sequence[Path]) -> None:
    """Make way for new checkpoints of these steps; every member of a host tries to."""
    for directory in passed_over:
        with contextlib.suppress(OSError):  # gone, or the disk is: then the next write tells
            manifest.quarantine(directory)
