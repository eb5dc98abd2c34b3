"""Follow-ups: what all workers do together after a commit: evaluate, save a checkpoint, and let the
caller of `session.steps` do its work.

All of it may happen twice on one worker, which takes over from one that was lost in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.arena.memory import Phase
from holdfast.checkpoint.manifest import Best
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.data.loading.reader import Reader
from holdfast.data.loading.source import Source
from holdfast.data.loading.stream import StreamReader
from holdfast.errors import JobError
from holdfast.job.settings import Evaluation
from holdfast.worker import devices
from holdfast.worker.agent_link import StopRequested
from holdfast.worker.evaluation import Measure
from holdfast.worker.membership.member import Member
from holdfast.worker.metric_states import Results, Tally, together
from holdfast.worker.progress import Pause
from holdfast.worker.step.commit import RequestFlags, StepCommitted


class Followups:
    """The follow-ups of one worker.

    Args:
        member: The worker.

    Attributes:
        in_loop: True if the loop over shards has begun. Before it, a worker that was replaced
            evaluates again from the first call.
        settle: Waits until the outcome of the newest step is known.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._progress = member.progress
        self._settings = member.job.evaluation
        self._evaluations = list[Callable[[], Results]]()
        self._calls_before_loop = 0
        self.in_loop = False
        self.settle: Callable[[], None] = lambda: None

    def evaluate_each_epoch(self, source: Source, measure: Measure, tally: Tally) -> None:
        """Evaluate after epochs, as often as the job says."""
        self._evaluations.append(lambda: self.evaluate(source, measure, tally))

    @property
    def has_evaluations(self) -> bool:
        """True if anything is evaluated after epochs."""
        return bool(self._evaluations)

    def run(self, reader: Reader) -> None:
        """Do all that is due after the newest step.

        Raises:
            Aborted: The generation is over.
            StopRequested: The run stops in an evaluation.
        """
        progress = self._progress
        saver = self._member.joined.saver
        followup = progress.followup
        # Checkpoints and evaluations build on the step; in most steps there are none.
        saves = progress.deferred or self._is_save_due
        if followup.requests or saves or self._is_evaluation_due(progress.step - 1, reader):
            self.settle()
        if followup.compares:
            saver.compare()
        # Calls are counted from zero: a worker that takes over gets the known results in the same
        # order.
        progress.evaluations.calls = 0
        improved = self._evaluate_after(progress.step - 1, reader)
        followup.calls = progress.evaluations.calls
        if progress.keeps_error and (followup.stops or followup.saves or saves):
            # The next step sends all; then there is nothing that a checkpoint lacks.
            progress.deferred = True
            followup.requests &= ~RequestFlags.STOP
        elif followup.stops:
            saver.save_durably()
        elif improved:  # retention looks for a checkpoint of just this step
            saver.save()
        elif followup.saves or saves:
            saver.save_or_defer()
        elif followup.snapshots and not (followup.is_busy or progress.keeps_error):
            saver.keep_snapshot()
        # From here on the step is complete; a worker that joins does not repeat it.
        followup.pending = False

    @property
    def _is_save_due(self) -> bool:
        every_steps = self._member.job.checkpoint.every_steps
        return every_steps > 0 and self._progress.step % every_steps == 0

    def saves_after(self, reader: Reader) -> bool:
        """True if a checkpoint may follow the next step because it ends an epoch or the run, also
        one that is asked for in an evaluation.
        """
        step = self._progress.step
        is_evaluated = self._is_evaluation_due(step, reader)
        return is_evaluated or reader.is_over(step + 1) or self.ends_at(step + 1, reader)

    def evaluate(self, source: Source, measure: Measure, tally: Tally) -> Results:
        """Evaluate, or return what the other workers have found at the same call.

        Raises:
            Aborted: The generation is over.
            StopRequested: The run stops; there is a checkpoint of the newest step.
            JobError: The model is not attached, or `tally` does not take what `measure` returned.
        """
        member = self._member
        evaluations = self._progress.evaluations
        buffers = member.joined.stepper.buffers
        results = evaluations.before_loop
        call = self._calls_before_loop
        if self.in_loop:
            results = evaluations.results
            call = evaluations.calls
        # No member has evaluated this call yet, so all do it now, together.
        if call == len(results):
            autocast = devices.autocast(member.device, member.job.precision)
            with autocast, buffers.committed():
                try:
                    found = member.joined.evaluator.evaluate(
                        member.shards, source, measure, tally, self._progress.step
                    )
                except StopRequested:
                    if self.in_loop:
                        member.joined.saver.save_durably()
                    raise
                results.append(found)
        if self.in_loop:
            evaluations.calls += 1
        else:
            self._calls_before_loop += 1
        evaluations.metrics = evaluations.metrics | results[call]
        return results[call]

    @property
    def newest(self) -> Results:
        """The results of the newest evaluation."""
        evaluations = self._progress.evaluations
        return evaluations.results[-1] if evaluations.results else evaluations.metrics

    def ends_at(self, step: int, reader: Reader) -> bool:
        """True if the run ends early after `step` steps: the watched metric has not improved for as
        many evaluations as the job allows, or the job ends it after an epoch.
        """
        patience = self._settings.patience
        if patience is not None and self._progress.evaluations.best.since >= patience:
            return True
        epochs = self._member.job.stop_after_epochs
        if epochs is None or step == 0 or not reader.ends_epoch(step - 1):
            return False
        return reader.epoch_of(step - 1) + 1 >= epochs

    def _is_evaluation_due(self, step: int, reader: Reader) -> bool:
        epoch = reader.epoch_of(step) + 1
        is_counted = epoch % self._settings.every_epochs == 0 or reader.is_over(step + 1)
        return bool(self._evaluations) and is_counted and reader.ends_epoch(step)

    def _evaluate_after(self, step: int, reader: Reader) -> bool:
        """Evaluate if it is due; returns whether the result is the best so far."""
        if not self._is_evaluation_due(step, reader):
            return False
        progress = self._progress
        progress.followup.evaluates = True
        results = together([evaluate() for evaluate in self._evaluations])
        progress.followup.evaluates = False
        self._member.metrics.evaluation(progress.step, results)
        evaluations = progress.evaluations
        evaluations.best = best_after(
            evaluations.previous_best, self._settings, progress.step, results
        )
        return evaluations.best.step == progress.step


def best_after(best: Best, settings: Evaluation, step: int, results: Mapping[str, Any]) -> Best:
    """The best evaluation once `results`, measured after `step` steps, are known.

    Raises:
        JobError: The metric that the job watches is not among them, or is not a number.
    """
    if settings.best is None:
        return best
    if settings.best not in results:
        raise JobError(
            f"evaluation.best={settings.best} is not measured; the evaluation gives "
            f"{', '.join(sorted(results))}"
        )
    value = results[settings.best]
    if not isinstance(value, int | float):
        raise JobError(f"evaluation.best={settings.best} is a list; name a metric that is a number")
    sign = 1 if settings.goal == "max" else -1
    if sign * value > (-math.inf if best.value is None else sign * best.value):  # NaN never is
        return Best(value=value, step=step)
    return best.model_copy(update={"since": best.since + 1})


class WholeSteps:
    """Chooses the whole steps, whose gradient is not compressed though the job says so.

    What compression keeps from the others is no state of the run: a checkpoint lacks it. So a step
    is whole if a checkpoint follows it, and one that is asked for waits for a whole step. All
    workers choose alike.

    Args:
        member: The worker.
        followups: Work of all workers after a commit.
    """

    def __init__(self, member: Member, followups: Followups) -> None:
        self._member = member
        self._followups = followups
        self._compression = member.job.compression

    def begin_step(self, reader: Reader) -> None:
        """Have the stepper send all of the next gradient, if it is to."""
        if self._compression.is_on:
            self._member.joined.stepper.sends_whole = self._is_next_whole(reader)

    def on_commit(self, committed: StepCommitted, record: dict[str, Any]) -> None:
        """Note whether the newest step was compressed, also in its metrics line."""
        if not self._compression.is_on:
            return
        is_compressed = not self._member.joined.stepper.sends_whole
        if is_compressed:
            record["compressed"] = True
        if committed.pending is None and committed.outcome().skipped:
            return  # the error is what it was
        # PyTorch's PowerSGD can send no step whole: no checkpoint waits for one.
        job = self._member.job
        can_send_whole = job.sync != "ddp" or self._compression.method != "powersgd"
        keeps_error = is_compressed and self._compression.error_feedback
        self._member.progress.keeps_error = keeps_error and can_send_whole

    def _is_next_whole(self, reader: Reader) -> bool:
        progress = self._member.progress
        if progress.deferred or progress.step < self._compression.warmup_steps:
            return True
        every_steps = self._member.job.checkpoint.every_steps
        if every_steps and (progress.step + 1) % every_steps == 0:
            return True
        # Of a stream no end is known beforehand.
        return not isinstance(reader, StreamReader) and self._followups.saves_after(reader)


class Pauses:
    """The pauses of one worker, in which the caller of `session.steps` works, on all workers alike.

        step is committed ─▶ caller: logs, schedules, evaluates, saves ─▶ barrier ─▶ next step

    What it changes becomes part of the state. The barrier ensures that all of it is done before the
    next step: a worker that is lost in a pause is replaced, and the new one does the work again.

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
