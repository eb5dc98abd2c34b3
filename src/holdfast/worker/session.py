"""Session: what user code trains with. It never asks for a rank.

    def main(session):
        model, optimizer = session.attach(Net, lambda p: torch.optim.AdamW(p, lr=1e-3))
        for shard in session.shards(dataset, epochs=5):
            loss = F.cross_entropy(model(shard.x), shard.y)
            session.backward(loss)

`shards` yields one shard at a time until this worker has given what it owes to the step. When it is
asked again and nothing more is owed, the step is reduced, checked, clipped, applied and committed,
and the next one begins. If another worker was lost, it may first yield more shards of the same
step. Leaving the loop never commits half a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.memory import Phase, Word
from holdfast.core.plan import WorkItem
from holdfast.core.seeds import seed_for
from holdfast.data.dataset import Dataset, as_dataset, seed_everything
from holdfast.data.loading.loader import Loaded, Loader, model_seed
from holdfast.data.loading.order import SampleOrder
from holdfast.errors import Aborted, JobError
from holdfast.job.train_job import TrainJob
from holdfast.worker import device
from holdfast.worker.best import best_after, should_stop_early
from holdfast.worker.evaluation import Measure
from holdfast.worker.membership.attach import AttachedModel, ModelFactory, OptimizerFactory
from holdfast.worker.membership.member import Member
from holdfast.worker.progress import Progress
from holdfast.worker.resume_check import check_samples, order_of
from holdfast.worker.shard import Shard
from holdfast.worker.step.ddp import borrowed
from holdfast.worker.step.tree import Stepper
from holdfast.worker.user_state.commit_hooks import CommitHooks, ScheduleFactory

K = TypeVar("K")


class StopRequested(BaseException):
    """Ends the user's function once the run has been asked to stop and its state is safe.

    Not an Exception, so that the function's own error handling lets it pass.
    """


class Session:
    """A worker's view of the run."""

    def __init__(self, job: TrainJob, member: Member) -> None:
        self._job, self._member = job, member
        self._hooks = CommitHooks()
        self._evaluation: Callable[[], dict[str, float]] | None = None
        self._attached: AttachedModel | None = None
        self._current: Shard | None = None
        self._samples = 0
        self._calls_before = 0
        self._loop_begun = False

    @property
    def job(self) -> TrainJob:
        """What the run was asked to do; `job.params` holds what is meant for the task."""
        return self._job

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self._progress.step

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary for whatever user code wants to keep.

        It is saved with every checkpoint and given back when the run is resumed, and to a worker
        that takes the place of a lost one; so it must hold plain JSON values, and the same ones on
        every worker. Change it in a function given to `on_commit`, not in the loop over shards.
        """
        return self._progress.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._progress.state = state

    @property
    def loss(self) -> float | None:
        """The loss of the newest step; None if there was none, or it was not finite."""
        return self._progress.loss

    @property
    def metrics(self) -> dict[str, float]:
        """The newest results of the evaluation."""
        return self._progress.metrics

    @property
    def _progress(self) -> Progress:
        self._member.join_once()
        return self._member.progress

    def attach(
        self,
        model: ModelFactory,
        optimizer: OptimizerFactory,
        *,
        schedule: ScheduleFactory | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        """Build what is to be trained.

        The state of a resumed run comes when the session is next asked for something, at the latest
        in `shards`. Until then the model is as its factory has built it, on every worker alike.
        After the loop over shards the model is no longer part of the run's state.

        Args:
            model: Gives the model. Called with torch's generators seeded from the job.
            optimizer: Gives the optimizer for the parameters that it is called with.
            schedule: Called with the steps of the run, gives a function from the step to the
                factor on the optimizer's learning rates; None leaves them alone.

        Raises:
            JobError: Called twice, or there is nothing to train.
        """
        self._attached = self._member.attach(model, optimizer)
        self._hooks.follow(self._attached.optimizer, schedule)
        return self._attached.callable, self._attached.optimizer

    def register(self, name: str, registered: K) -> K:
        """Make something the user keeps next to the model part of the run's state.

        It is saved with every checkpoint, given back when the run is resumed and to a worker that
        takes the place of a lost one, and compared between workers. Change it in `on_commit`.

        Args:
            name: What checkpoints and errors call it.
            kept: A module, such as `torch.optim.swa_utils.AveragedModel`, or anything else with
                `state_dict` and `load_state_dict`, such as a scheduler of
                `torch.optim.lr_scheduler`.

        Returns:
            `kept`.

        Raises:
            JobError: The model is not attached, training has begun, or the name is taken.
        """
        self._member.register(name, registered)
        return registered

    def on_commit(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on every worker once for every committed step, in order.

        It is the place for a scheduler's step, the update of an average, or a change of
        `session.state`: a worker that owes no shard of a step does not run the loop over shards.
        `session.step` counts the new step already, and `session.loss` is its loss.
        """
        if self._loop_begun:
            raise JobError("session.on_commit was called in the loop over shards; call it before")
        self._hooks.add(callback)

    def shards(self, dataset: object, *, epochs: int) -> Iterator[Shard]:
        """Walk through `dataset`, `epochs` times in all, from where the run is.

        Args:
            dataset: A `holdfast.Dataset`, or any map-style PyTorch data set.
            epochs: Passes through it.

        Yields:
            The shards that this worker owes; call `backward` once for each.

        Raises:
            JobError: The model is not attached, or this is the second loop.
        """
        member = self._member
        member.join_once()
        stepper = member.stepper
        if self._loop_begun:
            raise JobError("session.shards was called twice; a run has one training loop")
        self._loop_begun = True
        samples = as_dataset(dataset)
        order = self._begin(samples, epochs)
        self._hooks.begin(order.total_steps, self.step)
        member.begin_loop(self._after_commit)
        check_abort = member.group.check_abort
        loader = Loader(
            samples, order, member.work_items, settings=self.job.loader, check_abort=check_abort
        )
        try:
            while True:
                try:
                    if self._is_over(order) and not member.progress.followup_pending:
                        member.save(final=True)
                        break
                    check_samples(loader, samples, member.progress)
                    if member.progress.followup_pending:
                        self._follow_up(order)
                    elif member.progress.stop:
                        raise StopRequested
                    else:
                        yield from self._one_step(loader, samples, order)
                except Aborted:
                    member.join()
        finally:
            self._current = None
            stepper.abandon()
            loader.close()
            member.end_loop()

    def backward(self, loss: torch.Tensor, *, weight: float | None = None) -> None:
        """Record the gradient of the current shard.

        Args:
            loss: The mean over the shard's samples, a scalar.
            weight: What the shard counts for among the shards of its step; by default its number
                of samples. Give the number of tokens, say, where the loss is a mean over those.

        Raises:
            JobError: There is no current shard, or the loss is no scalar, or this is the second
                call for the shard.
        """
        if self._current is None:
            raise JobError("session.backward belongs inside the loop over session.shards")
        size = self._current.size
        chosen = size if weight is None or size == 0 else weight
        with self._autocast(enabled=False):
            self._member.stepper.backward(loss, chosen / self._samples)

    def log(self, **values: float) -> None:
        """Log means over the current shard's samples; the run keeps their means over the step.

        Raises:
            JobError: There is no current shard, or there are more values than fit.
        """
        if self._current is None:
            raise JobError("session.log belongs inside the loop over session.shards")
        self._member.stepper.log({name: float(value) for name, value in values.items()})

    def evaluate_each_epoch(self, dataset: object, measure: Measure) -> None:
        """Evaluate after every epoch, or as often as the job says; the results go to the run's
        metrics, and the job's `evaluation.best` is looked for among them.

        Args:
            dataset: What to measure on.
            measure: Called with the model and a batch, gives means over the batch, by name.
        """
        self._evaluation = lambda: self._evaluate_once(dataset, measure)

    def evaluate(self, dataset: object, measure: Measure) -> dict[str, float]:
        """The means over `dataset` of what `measure` gives for batches, exact and the same on all
        workers. Every worker must call it, outside the loop or at the same step.

        Raises:
            JobError: The model is not attached, or `measure` gave different names.
        """
        if self._hooks.running:
            raise JobError("session.evaluate belongs in the loop over shards, not in on_commit")
        self._member.join_once()
        while True:
            try:
                return self._evaluate_once(dataset, measure)
            except Aborted:
                self._member.join()

    def _begin(self, samples: Dataset, epochs: int) -> SampleOrder:
        """Note how the run iterates over its data, for those who watch it too."""
        member, progress = self._member, self._member.progress
        order = member.order = order_of(self.job, samples, epochs, progress)
        status = member.context.status
        status[Word.TOTAL_STEPS], status[Word.EPOCHS] = order.total_steps, epochs
        status[Word.COMMITTED] = progress.step
        return order

    def _is_over(self, order: SampleOrder) -> bool:
        progress = self._member.progress
        return progress.step >= order.total_steps or should_stop_early(
            progress.best, self.job.evaluation
        )

    def _one_step(self, loader: Loader, samples: Dataset, order: SampleOrder) -> Iterator[Shard]:
        """Yield what this worker owes to the step in hand, and commit it."""
        member, step = self._member, self._member.progress.step
        member.context.status[Word.EPOCH] = order.epoch_of(step)
        self._samples = order.batch_size_of(step)
        member.context.failpoints.at_step(member.replica)
        yield from self._missing_shards(loader, samples, order)
        yield from self._verified_shards(loader, order)
        while not member.commit():
            yield from self._missing_shards(loader, samples, order)
            yield from self._verified_shards(loader, order)

    def _missing_shards(
        self, loader: Loader, samples: Dataset, order: SampleOrder
    ) -> Iterator[Shard]:
        member, step = self._member, self._member.progress.step
        while missing := member.missing():
            member.group.check_abort()
            loader.set_work_items(member.work_items)
            member.context.status.enter(Phase.DATA)
            loaded = loader.take(step, missing[0])
            if loaded is None and self.job.sync == "ddp":
                loaded = borrowed(samples, order, step)
            yield from self._computed(missing[0], loaded, order, again=False)

    def _verified_shards(self, loader: Loader, order: SampleOrder) -> Iterator[Shard]:
        """Yield shards of other workers, to see whether they give the same here."""
        member, step = self._member, self._member.progress.step
        while pending := member.to_verify():
            member.group.check_abort()
            member.context.status.enter(Phase.DATA)
            loaded = loader.read_now(step, pending[0])
            yield from self._computed(pending[0], loaded, order, again=True)

    def _computed(
        self, unit: WorkItem, loaded: Loaded | None, order: SampleOrder, *, again: bool
    ) -> Iterator[Shard]:
        """Yield what was read of a unit, and account for it."""
        member, stepper, step = self._member, self._member.stepper, self._member.progress.step
        if loaded is None:
            assert isinstance(stepper, Stepper)
            stepper.skip_shard(unit.leaf, again=again)
            return
        member.context.status.enter(Phase.COMPUTE)
        stepper.begin_shard(unit.leaf, model_seed(self.job.seed, step, unit), again=again)
        yield from self._one_shard(loaded, order.epoch_of(step))
        stepper.end_shard()

    def _follow_up(self, order: SampleOrder) -> None:
        """Do what is due after the newest step: evaluate, save, stop.

        All of it may be done again, for instance by somebody who takes over in the middle of it.
        """
        progress = self._member.progress
        progress.calls = 0
        improved = self._evaluate_after(progress.step - 1, order)
        progress.followup_calls = progress.calls
        every = self.job.checkpoint.every_steps
        due = every and progress.step % every == 0
        if progress.stop or progress.save or improved or due:
            self._member.save(final=progress.stop)
        progress.followup_pending = False

    def _evaluate_after(self, step: int, order: SampleOrder) -> bool:
        """Evaluate if it is time to; returns whether the result is the best so far."""
        progress, wish = self._member.progress, self.job.evaluation
        epoch = order.epoch_of(step) + 1
        due = epoch % wish.every_epochs == 0 or epoch == order.epochs
        if self._evaluation is None or not (due and order.ends_epoch(step)):
            return False
        results = self._evaluation()
        self._member.evaluation_noted(results)
        progress.best = best_after(progress.previous_best, wish, progress.step, results)
        return progress.best.step == progress.step

    def _evaluate_once(self, dataset: object, measure: Measure) -> dict[str, float]:
        """Evaluate, or take over what the others have found in the same place."""
        member, progress = self._member, self._member.progress
        _ = member.stepper
        known, call = progress.results, progress.calls
        if member.rechecks:  # the others are not in this place
            return known[-1] if known else progress.metrics
        if not self._loop_begun:  # where a worker may find itself alone, in the place of another
            known, call = progress.before, self._calls_before
        if call == len(known):
            assert member.evaluator is not None
            data, step = as_dataset(dataset), progress.step
            with self._autocast(), member.stepper.committed_buffers():
                known.append(member.evaluator.evaluate(member.shards, data, measure, step))
        if self._loop_begun:
            progress.calls += 1
        else:
            self._calls_before += 1
        progress.metrics = progress.metrics | known[call]
        return known[call]

    def _after_commit(self) -> None:
        status = self._member.context.status
        before = status.enter(Phase.COMPUTE)
        if self._hooks.has_callbacks:
            assert self._attached is not None
            seed_everything(seed_for("commit", self.job.seed, self.step))
            with self._attached.user_state.module_changes.noted():
                self._hooks.call()
        self._hooks.set_rates(self.step)
        status.enter(before)

    def _one_shard(self, loaded: Loaded, epoch: int) -> Iterator[Shard]:
        batch = loaded.batch
        if self._member.device.type != "cpu":
            batch = device.moved(batch, self._member.device)
        self._current = Shard(batch, loaded.size, self.step, epoch)
        with self._autocast():
            yield self._current
        self._current = None

    def _autocast(self, *, enabled: bool = True) -> torch.autocast:
        mixed = enabled and self.job.precision == "bf16"
        return torch.autocast(self._member.device.type, dtype=torch.bfloat16, enabled=mixed)
