"""Steps: the training loop as other code drives it, which has a loop of its own.

    library's loop, on all workers alike       between steps: callbacks, logs, evaluation, files
      steps.advance(compute) ──▶ compute(shard) for the shards of this worker; reduce; commit

Recovery happens within `advance`. A worker that replaces another one enters the library's loop at
the newest step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import JobError
from holdfast.worker.loop.training_loop import TrainingLoop
from holdfast.worker.membership.member import Member
from holdfast.worker.shard import Shard

Compute = Callable[[Shard], object]


class Steps:
    """The steps of a run on one worker.

    Args:
        loop: The training loop, with pauses.
        member: The worker.
    """

    def __init__(self, loop: TrainingLoop, member: Member) -> None:
        self._loop = loop
        self._member = member
        self._turns = loop.run()

    def advance(self, compute: Compute) -> bool:
        """Train until the next step is committed; a step after which this worker has not done the
        caller's work yet is not trained again.

        Args:
            compute: Computes a shard; it calls `session.backward`.

        Returns:
            False if the run is over, and there was no further step.
        """
        for shard in self._turns:
            if shard is None:
                return True
            compute(shard)
        return False

    def shards(self) -> Iterator[Shard]:
        """Yield the shards of this worker until the next step is committed."""
        for shard in self._turns:
            if shard is None:
                return
            yield shard

    def finish(self) -> None:
        """End the run after the newest step, and save its state.

        Raises:
            JobError: There is another step.
        """
        self._loop.end()
        if self.advance(_refuse):
            raise JobError("steps.finish was called before the caller's work after a step")

    @property
    def newest(self) -> Mapping[str, Any]:
        """The metrics line of the newest step; see `docs/metrics.md`."""
        self._loop.settle()
        return self._member.progress.record

    @property
    def is_main(self) -> bool:
        """True on one worker, which writes files; another one may become it later."""
        return self._member.group.member_index == 0

    @property
    def run_dir(self) -> Path:
        """The directory of the run."""
        return self._member.metrics.run_dir


def _refuse(shard: Shard) -> None:
    raise JobError(f"step {shard.step + 1} begins after the end of the training loop")
