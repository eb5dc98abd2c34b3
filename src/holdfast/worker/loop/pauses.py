"""Pauses: what the caller of `session.steps` does between two steps, on every worker alike.

    step is committed ─▶ caller: logs, schedules, evaluates, saves ─▶ barrier ─▶ next step

What it changes becomes part of the state. The barrier ensures that all of it is done before the
next step: a worker that is lost in a pause is replaced, and the new one does the work again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.arena.memory import Phase
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.worker.membership.member import Member
from holdfast.worker.progress import Pause


class Pauses:
    """The pauses of one worker.

    Args:
        member: The worker.
        settle: Waits until the outcome of the newest step is known.
    """

    def __init__(self, member: Member, settle: Callable[[], None]) -> None:
        self._member = member
        self._progress = member.progress
        self._settle = settle

    def begin_step(self) -> None:
        """Note that a step was committed, after which there is a pause."""
        self._progress.followup.pause = Pause()

    def run(self, pause: Pause) -> Iterator[None]:
        """Yield for the caller's work, unless this worker has done it, and wait for the others.

        Raises:
            Aborted: The generation is over.
            JobError: What the caller has changed cannot be saved.
        """
        if not pause.is_done:
            yield from self._work(pause)
        self._member.group.barrier(WorkerTag.PAUSE, self._progress.step)
        self._progress.followup.pause = None
        # A worker that dies before has left no replica: that of another one may be from before the
        # pause.
        self._member.joined.state.publish()

    def _work(self, pause: Pause) -> Iterator[None]:
        state = self._member.joined.state
        status = self._member.context.status
        self._settle()
        pause.before = self._progress.user.to_json()
        state.begin_change()
        seed_everything(seed_for("pause", self._member.job.seed, self._progress.step))
        before = status.enter(Phase.FORWARD)
        with state.user_code() as overwritten:
            yield
        status.enter(before)
        state.take_changes()
        pause.is_done = True
        if overwritten:
            pause.before = None
