"""The training loop of one worker: reads shards, has them computed, and commits steps.

    resume check ─▶ pause, follow-ups of the newest step ─▶ shards ─▶ commit ─┐
                        ▲                                     │               │
                        └─────── join the next generation ◀───┴─ aborted      │
                        └─────────────────────────────────────────────────────┘

It leaves no step half committed: a step is complete on all workers, or it is computed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.arena.memory import Phase, Word
from holdfast.checkpoint.manifest import FORKED
from holdfast.collectives.reduction import PlansDiffer
from holdfast.core.step.loss_scale import LossScale
from holdfast.core.step.plan import WorkItem
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.data.loading.loaded import Loaded
from holdfast.data.loading.loader import model_seed
from holdfast.data.loading.reader import SAMPLES
from holdfast.data.loading.source import Source
from holdfast.data.loading.stream import StreamReader
from holdfast.errors import Aborted, HardwareError, JobError
from holdfast.rundir.run_directory import log_event
from holdfast.worker import devices
from holdfast.worker.agent_link import SelfEviction, StopRequested
from holdfast.worker.loop.followups import Followups, Pauses, WholeSteps
from holdfast.worker.loop.main_only import MainOnly
from holdfast.worker.loop.parameter_hooks import take_hooks
from holdfast.worker.loop.step_records import StepRecords
from holdfast.worker.membership.member import Member
from holdfast.worker.progress import note_facts
from holdfast.worker.shard import Shard
from holdfast.worker.step.commit import CommitVote, StepCommitted, UserStatesDiffer
from holdfast.worker.step.shard_work import checked_weight
from holdfast.worker.step.stepper import Work
from holdfast.worker.timing.stopwatch import Stopwatch
from holdfast.worker.unread_keys import ReadJob
from holdfast.worker.user_state.commit_hooks import CommitHooks, When
from holdfast.worker.user_state.user_state import SCHEDULE, STREAM


class TrainingLoop:
    """The loop over a data set.

    Args:
        job: The job, as the task reads it.
        member: The worker, which has joined.
        followups: Work of all workers after a commit.
        hooks: Callbacks of user code after a commit.
        main_only: Functions of user code that one worker runs.
        source: Data to train on.
        epochs: Passes through it; 0 if only `steps` ends the run.
        steps: Steps of the run; 0 if only `epochs` ends it.
        pauses: True if the caller has work between two steps.

    Attributes:
        shard: The shard that user code computes now; None outside of one.
        is_checking: True if that shard only checks a result.

    Raises:
        JobError: The run began with other data.
    """

    def __init__(
        self,
        job: ReadJob,
        member: Member,
        followups: Followups,
        hooks: CommitHooks,
        main_only: MainOnly,
        source: Source,
        epochs: int,
        steps: int,
        *,
        pauses: bool = False,
    ) -> None:
        self._member = member
        self._followups = followups
        self._hooks = hooks
        self._main_only = main_only
        self._job = job
        self._progress = member.progress
        self._state = member.joined.state
        self._stepper = member.joined.stepper
        self._status = member.context.status
        self._balancing = member.balancing
        self._breakdown = member.breakdown
        self._stopwatch = Stopwatch(member.group, member.context.status, member.device)
        self._batches = devices.DeviceBatches.of(member.device)
        self._reader = source.reader(self._job, epochs, steps, member.group.check_abort)
        # Before anything is read: a resumed run must read the same data in the same order.
        self._extended = note_facts(self._progress, self._reader.facts, extend=self._job.extend)
        if job.precision == "fp16" and self._progress.loss_scale is None:
            self._progress.loss_scale = LossScale()
        if isinstance(self._reader, StreamReader):
            self._state.follow(STREAM, self._reader)
        if job.evaluation.best is not None and not followups.has_evaluations:
            raise JobError(
                f"evaluation.best={job.evaluation.best}, and nothing is evaluated: call "
                "session.evaluate_each_epoch before the loop, or remove evaluation.best"
            )
        self._records = StepRecords(member)
        followups.settle = self._records.settle
        self._whole_steps = WholeSteps(member, followups)
        self._pauses = Pauses(member, self._records.settle) if pauses else None
        self._has_ended = False
        self._recorded_counts: tuple[int, ...] = ()
        self._recorded_unscored = False
        self.shard: Shard | None = None
        self.is_checking = False

    def run(self) -> Iterator[Shard | None]:
        """Yield the shards that this worker computes, and None for each pause, until the run is
        over.
        """
        member = self._member
        status = self._status
        reader = self._reader
        # For the agent, which shows how far the run is.
        status[Word.TOTAL_STEPS] = reader.total_steps
        status[Word.EPOCHS] = reader.epochs
        status.loss = math.nan if self._progress.loss is None else self._progress.loss
        status[Word.COMMITTED] = self._progress.step
        self._begin_schedules()
        # From here on an optimizer is stepped by the commit only.
        refusing = register_optimizer_step_pre_hook(self._refuse_step)
        self._hooks.add_first("gradients", take_hooks(member.joined.replica.parameters.values()))
        if self._hooks.has_callbacks("gradients"):
            self._stepper.on_gradients = partial(self._call_hooks, "gradients")
        member.begin_loop(self._on_commit)
        if self._extended or FORKED in self._progress.user.captured:
            self._extend_schedules()
        try:
            while True:
                try:
                    # What comes next follows from the progress alone, so a worker that was replaced
                    # continues like the others.
                    if self._is_over:
                        self._records.settle()
                        member.joined.saver.save_durably()
                        break
                    self._check_data()
                    if (pause := self._progress.followup.pause) is not None:
                        assert self._pauses is not None, "a pause without a caller"
                        yield from self._pauses.run(pause)
                    elif self._progress.followup.pending:
                        member.align()
                        self._followups.run(reader)
                    elif self._progress.followup.stops:
                        raise StopRequested
                    else:
                        yield from self._one_step()
                # The step in progress is not lost: partial sums of it stay in the slots, and the
                # next turn continues with what is missing.
                except Aborted:
                    self._records.settle()
                    yield from self._rejoin()
        except GeneratorExit:  # user code has left the loop
            self._records.settle()
            raise
        finally:
            refusing.remove()
            self.shard = None
            self._stepper.abandon()
            reader.close()
            self._state.release()
            status.enter(Phase.LEFT)

    def _check_data(self) -> None:
        """Note what is read in this epoch.

        Raises:
            JobError: It differs from what the run began with.
        """
        known = self._progress.order
        compares = self._member.compares_samples
        if not compares:
            known = {key: value for key, value in known.items() if key != SAMPLES}
        noted = self._reader.check(self._progress.step, known)
        if not compares:
            noted.pop(SAMPLES, None)
        self._progress.order |= noted

    def _refuse_step(self, optimizer: Optimizer, *_: object) -> None:
        """Raises: JobError: User code steps an optimizer that the commit steps, or another one in
        vain.
        """
        if optimizer not in self._member.joined.replica.optimizers:
            if self._hooks.running and self._is_in_vain(optimizer):
                raise JobError(
                    f"{type(optimizer).__name__}.step() was called in a hook and trains nothing, "
                    "or what no checkpoint has; build the optimizer in session.attach, or give it "
                    "and its module to session.register"
                )
        elif self.shard is not None or self._hooks.running == "gradients":
            raise JobError(
                "optimizer.step() was called in the loop over session.shards, or in a function "
                "given to session.on_gradients; remove it: the optimizer is stepped when all "
                "shards of the step have called session.backward"
            )

    def _is_in_vain(self, optimizer: Optimizer) -> bool:
        """True if an optimizer has no gradient, or keeps or trains what is no state of the run."""
        assert self._member.models is not None
        replica = self._member.joined.replica
        held = [p for group in optimizer.param_groups for p in group["params"]]
        saved = {*map(id, replica.parameters.values()), *map(id, replica.kept_parameters.values())}
        is_saved = not optimizer.state or optimizer in self._member.models.registered.values()
        return (
            not is_saved
            or not saved.issuperset(map(id, held))
            or not any(p.grad is not None for p in held)
        )

    def _extend_schedules(self) -> None:
        """Have schedules span the new length of a run, and write down what they make of it."""
        for schedule in self._hooks.schedules:
            schedule.extend(self._reader.total_steps, self._progress.step)
        self._follow_schedulers()
        self._state.commit()
        if not (self._is_first and self._extended):
            return
        self._log_event(
            "run-extended",
            step=self._progress.step,
            epochs=self._reader.epochs,
            total_steps=self._reader.total_steps,
            lr=self._hooks.learning_rate,
        )

    @property
    def _is_first(self) -> bool:
        """True if this worker writes down what concerns all."""
        return self._member.group.member_index == 0

    def _log_event(self, name: str, **fields: object) -> None:
        log_event(self._member.metrics.run_dir, name, **fields)

    def _begin_schedules(self) -> None:
        for schedule in self._hooks.schedules:
            schedule.begin(self._reader.total_steps, self._progress.step)
        self._follow_schedulers()

    def _follow_schedulers(self) -> None:
        for number, schedule in enumerate(self._hooks.schedules):
            if schedule.scheduler is not None:
                self._state.follow(f"{SCHEDULE}-{number}", schedule.scheduler)

    def backward(self, loss: torch.Tensor, weight: float | None, trains: nn.Module | None) -> None:
        """Record the gradient of the current shard; see `Session.backward`."""
        assert self.shard is not None, "backward without a shard"
        size = self.shard.size
        device = self._member.device
        chosen = size if weight is None or size == 0 else checked_weight(weight)
        share = chosen / self._reader.batch_size_of(self.shard.step)
        with devices.autocast(device, self._job.precision, enabled=False):
            self._stepper.backward(loss, share, self._progress.scale, trains)

    def settle(self) -> None:
        """Wait until the outcome of the newest step is known; see `StepRecords.settle`."""
        self._records.settle()

    def log(self, values: Mapping[str, object]) -> None:
        """Add values to what the current shard logs; see `Session.log`."""
        self._stepper.log(values)

    @property
    def _is_over(self) -> bool:
        if self._progress.followup.pending:
            return False
        step = self._progress.step
        is_over = self._reader.is_over(step) or self._has_ended
        return is_over or self._followups.ends_at(step, self._reader)

    def end(self) -> None:
        """End the run after the newest step, on all workers alike."""
        self._has_ended = True

    def _one_step(self) -> Iterator[Shard]:
        """Yield this worker's shards of the current step, and commit it."""
        member = self._member
        self._status[Word.EPOCH] = self._reader.epoch_of(self._progress.step)
        member.context.failpoints.at_step(member.joined.replica)
        self._record_plan()
        self._whole_steps.begin_step(self._reader)
        self._status[Word.PLANNED] = len(self._member.shards)
        # More than one round only if a result is in doubt: then the next work is to compute it
        # again.
        while True:
            while work := self._stepper.next_work():
                # A shard may take long: do not begin one for a generation that is over.
                member.group.check_abort()
                self._status.enter(Phase.DATA)
                with nullcontext() if work.is_check else self._stopwatch.shard():
                    yield from self._computed(work, self._read(work))
                self._status[Word.SHARDS] += 1
            self._status[Word.SHARDS] = 0
            if self._commit():
                return

    def _rejoin(self) -> Iterator[Shard]:
        """Join the next generation; on standby, compute probes until then."""
        while not self._member.join_unless_probed():
            with suppress(Aborted):
                yield from self._probe()

    def _probe(self) -> Iterator[Shard]:
        """Yield a shard only to measure this worker; nothing of it counts. Samples are read while
        others are computed, so the slower of the two decides.
        """
        step = self._progress.step
        stepper = self._stepper
        work = Work(WorkItem.of_shard(0), is_check=True)
        stepper.restart()
        began = time.monotonic()
        self._status.enter(Phase.DATA)
        loaded = None if self._reader.is_over(step) else self._reader.read_now(step, work.item)
        if loaded is None:  # the others reach the end without this worker
            self._member.standby.on_probed(math.inf)
            return
        read = time.monotonic()
        for shard in self._computed(work, loaded):
            stepper.restart()  # discards what is computed of the shard
            yield shard
        seconds = max(read - began, time.monotonic() - read)
        job = self._member.job
        self._member.standby.on_probed(seconds * job.batch / job.shards / loaded.size)

    def _read(self, work: Work) -> Loaded | None:
        """The samples of `work`; None if it has none and needs none."""
        step = self._progress.step
        # Samples that another worker was assigned: they were not read ahead here.
        if work.is_check:
            return self._reader.read_now(step, work.item)
        loaded = self._reader.take(step, work.item, self._stepper.work_items)
        if loaded is None and self._stepper.needs_every_worker:
            return self._reader.borrow(step)
        return loaded

    def _computed(self, work: Work, loaded: Loaded | None) -> Iterator[Shard]:
        """Yield a shard for user code to compute, and account for it."""
        if loaded is None:
            self._stepper.skip_shard(work)
            return
        step = self._progress.step
        device = self._member.device
        # The replica's values, random numbers of its own, and buffers as at the start of the step:
        # the shard's result depends on nothing else.
        self._status.enter(Phase.FORWARD)
        self._stepper.begin_shard(work, model_seed(self._job.seed, step, work.item))
        batch = self._batches.take(loaded)
        self.shard = Shard(batch, loaded.size, step, self._reader.epoch_of(step))
        self.is_checking = work.is_check
        with devices.autocast(device, self._job.precision):
            # User code runs now. It returns here when it asks for the next shard.
            yield self.shard
        self._batches.copy_ahead(self._reader.upcoming())
        self.shard = None
        self.is_checking = False
        self._status.enter(Phase.COLLECT)
        self._stepper.end_shard()

    def _commit(self) -> bool:
        """Commit the current step; returns False if a result is in doubt, so there is more work.

        Raises:
            Aborted: The generation is over, and this worker has not committed the step.
            SelfEviction: This worker has computed wrong bits, or its frozen weights have changed.
        """
        try:
            self._state.verify_bases()
        except HardwareError as error:
            raise SelfEviction(error) from None
        # All that members must know of each other travels with the reduction, at no further
        # barrier.
        vote = CommitVote(
            requests=self._member.requests(),
            user_state=self._state.user_digest(),
            replica=self._state.replicas.digest(self._progress.step),
            times=self._stopwatch.take(self._balancing.digest),
        )
        try:
            progress = self._progress
            # Nothing builds on a step that has come to nothing.
            self._records.settle()
            committed = self._stepper.commit(progress.step, vote, progress.scale)
        except UserStatesDiffer as states:
            self._state.fail_on_difference(states.first, states.other)
        except PlansDiffer:
            self._balancing.explain_difference()
        except HardwareError as error:
            raise SelfEviction(error) from None
        self._status.enter(Phase.DATA)
        # The step is not committed, and all members know that: none has changed its replica.
        if committed is None:
            self._balancing.ignore_step()
            return False
        # The step counts: a member that is aborted now completes it from the root slot.
        self._on_commit(committed)
        straggler = self._balancing.straggler
        # A caller with a loop of its own cannot leave out the steps of a standby.
        if self._is_first and straggler is not None and self._pauses is None:
            straggler = straggler.because(self._breakdown.reason_of(straggler.rank))
            self._member.standby.request(straggler, self._progress.step)
        # Every member plans from the same times, so all change to the same plan at the same step.
        if self._balancing.replan():
            self._stepper.assign(self._progress.step, self._balancing.plan)
        return True

    def _record_plan(self) -> None:
        """Write down a plan that differs from the one before; at the beginning, from an even one.

        A generation with other members begins with a plan of its own.
        """
        unscored = self._balancing.unscored
        if unscored and not self._recorded_unscored:
            self._recorded_unscored = True
            if self._is_first:
                self._log_event("scores-missing", balance=self._job.balance, ranks=list(unscored))
        counts = self._balancing.plan.counts
        before = self._recorded_counts or self._job.plan(len(counts)).counts
        if counts == before:
            return
        self._recorded_counts = counts
        if self._is_first:
            step = self._progress.step
            self._log_event("plan-changed", step=step, shards_per_worker=list(counts))

    def _on_commit(self, committed: StepCommitted) -> None:
        """Take note of a committed step, and call the commit hooks."""
        samples = self._reader.batch_size_of(committed.step)
        record = {
            "step": committed.step + 1,
            "epoch": self._reader.epoch_of(committed.step),
            "lr": self._hooks.learning_rate,
            "samples": samples,
        }
        counts = self._balancing.plan.counts
        self._whole_steps.on_commit(committed, record)
        # Progress first: what follows is between two steps, and user code sees the new step.
        self._records.begin(
            committed, record, partial(self._breakdown.row, committed.times, counts)
        )
        if self._pauses is not None:
            self._pauses.begin_step()
        # A worker that takes this rank continues from what is known here, or what a device leaves.
        if self._state.outlives_worker and not self._state.leaves_outcomes:
            self._records.settle()
        if self._balancing.observe(committed.times, is_whole=samples == self._job.batch):
            self._breakdown.observe(self._progress.step, committed.times, counts)
        # Once a step on every worker, however many shards it computed.
        with self._stopwatch.rest():
            self._reader.advance()
            self._call_hooks("commit")
            for schedule in self._hooks.schedules:
                schedule.advance(self._progress.step)
                if schedule.scheduler is not None:  # it may replace the state of its optimizer
                    self._member.joined.replica.capture_optimizers()
            # What the hooks have changed is state from here on, and the replica is marked as
            # intact.
            self._state.commit()
            self._status[Word.SAMPLES] += samples
            self._records.complete()
            # After the state is complete, so that a change by this worker alone is noticed.
            self._main_only.run_deferred()
        if committed.step == 0 and self._is_first:
            self._note_keys()

    def _note_keys(self) -> None:
        """Write down keys that code has set, and what is hardly what the user wants."""
        if adopted := self._member.adopted:
            self._log_event("keys-adopted", keys=", ".join(adopted))
        if unread := self._job.unread():
            self._log_event("keys-not-read", keys=", ".join(unread))
        if self._progress.order.get(SAMPLES) == "":
            self._log_event("samples-not-compared")

    def _call_hooks(self, when: When) -> None:
        before = self._status.enter(Phase.FORWARD)
        if self._hooks.has_callbacks(when):
            seed_everything(seed_for(when, self._job.seed, self._progress.step))
            with self._state.user_code():
                self._hooks.call(when)
        self._status.enter(before)
