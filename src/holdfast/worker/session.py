"""Session: what user code trains with. It never asks for a rank.

    def main(session):
        model, optimizer = session.attach(Net, lambda p: torch.optim.AdamW(p, lr=1e-3))
        for shard in session.shards(dataset, epochs=5):
            loss = F.cross_entropy(model(shard.x), shard.y)
            session.backward(loss)

`shards` yields one shard at a time until this worker has given what it owes to the step. When it is
asked again and nothing more is owed, the step is reduced, checked, clipped, applied and committed,
and the next one begins. Leaving the loop never commits half a step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.replica import Replica
from holdfast.checkpoint.manifest import Best
from holdfast.data.dataset import Dataset, as_dataset, generator_for
from holdfast.data.loader import Loaded, Loader, model_seed
from holdfast.data.order import Order
from holdfast.errors import JobError
from holdfast.job.spec import Job
from holdfast.transport.shared_memory import Meeting, SharedMemoryGroup
from holdfast.worker import attach, device
from holdfast.worker.attach import ModelFactory, OptimizerFactory
from holdfast.worker.best import best_after, hope_is_lost
from holdfast.worker.ddp import DdpStepper
from holdfast.worker.evaluation import Evaluator, Measure
from holdfast.worker.journal import Journal, Progress
from holdfast.worker.shard import Shard, units_of
from holdfast.worker.step import Stepper

ScheduleFactory = Callable[[int], Callable[[int], float]]
"""From the number of steps of the run to a function from a step to the learning rate's factor."""


class StopRequested(BaseException):
    """Ends the user's function once the run has been asked to stop and its state is safe.

    Not an Exception, so that the function's own error handling lets it pass.
    """


class Session:
    """A worker's view of the run.

    Attributes:
        job: What the run was asked to do; `job.params` holds what is meant for the task.
        state: A dictionary for whatever user code wants to keep. It is saved with every checkpoint
            and given back when the run is resumed, so it must hold plain JSON values, and the same
            ones on every worker.
        loss: The loss of the newest step; None if there was none.
        metrics: The newest results of the evaluation.
    """

    def __init__(self, job: Job, arena: Arena, rank: int, journal: Journal) -> None:
        self.job = job
        self.state: dict[str, Any] = {}
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self._arena, self._rank, self._journal = arena, rank, journal
        self._group = SharedMemoryGroup(arena, rank, job.timeout_s)
        self._plan = job.plan()
        self._units = units_of(self._plan, rank, merged=job.merges_shards)
        self._device = device.choose(job.device, rank)
        self._stepper: Stepper | DdpStepper | None = None
        self._replica: Replica | None = None
        self._evaluator: Evaluator | None = None
        self._base_rates: list[float] = []
        self._schedule: ScheduleFactory | None = None
        self._evaluation: Callable[[], dict[str, float]] | None = None
        self._step = 0
        self._order: dict[str, Any] = {}
        self._best = Best()
        self._current: Shard | None = None
        self._times = arena.times(rank)
        self._samples = 0
        self._loop_begun = False

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self._step

    def attach(
        self,
        model: ModelFactory,
        optimizer: OptimizerFactory,
        *,
        schedule: ScheduleFactory | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        """Build what is to be trained; a resumed run gets the state it had.

        Args:
            model: Gives the model. Called with torch's generators seeded from the job.
            optimizer: Gives the optimizer for the parameters that it is called with.
            schedule: Called with the steps of the run, gives a function from the step to the
                factor on the optimizer's learning rates; None leaves them alone.

        Raises:
            JobError: Called twice, or the workers have built different models.
        """
        if self._replica is not None:
            raise JobError("session.attach was called twice; a run trains one model")
        self._replica, sections = attach.attach(
            self.job, self._group, self._device, model, optimizer
        )
        built = self._replica.optimizer
        self._base_rates = [group["lr"] for group in built.param_groups]
        self._schedule = schedule
        restored = self._journal.restore(self._replica, self._group)
        self._step, self.state = restored.step, restored.state
        self.loss, self.metrics = restored.loss, restored.metrics
        self._order, self._best = restored.order, restored.best
        self._group.agree(
            Meeting.ATTACH,
            self._step,
            self._replica.checksum(),
            "different weights; the model's factory must draw from torch's seeded generator only",
        )
        self._evaluator = Evaluator(
            self._group,
            sections.evaluation,
            self._plan.shards_of(self._rank),
            batch_size=self.job.batch,
            device=self._device,
        )
        self._stepper = attach.stepper(
            self.job, self._replica, sections, self._group, lone=len(self._units) == 1
        )
        return self._stepper.model, built

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
        stepper = self._attached()
        if self._loop_begun:
            raise JobError("session.shards was called twice; a run has one training loop")
        self._loop_begun = True
        samples = as_dataset(dataset)
        job, arena, rank = self.job, self._arena, self._rank
        order = Order(
            num_samples=len(samples),
            batch_size=job.batch,
            num_shards=job.shards,
            epochs=epochs,
            seed=job.seed,
            fingerprint=samples.fingerprint,
        )
        self._continue(asdict(order))
        factor = self._schedule(order.total_steps) if self._schedule else None
        arena[rank, Word.TOTAL_STEPS], arena[rank, Word.EPOCHS] = order.total_steps, epochs
        arena[rank, Word.COMMITTED] = self._step
        loader = Loader(
            samples, order, self._units, settings=job.loader, check_abort=arena.check_abort
        )
        try:
            while self._step < order.total_steps and not hope_is_lost(self._best, job.evaluation):
                arena[rank, Word.EPOCH] = order.epoch_of(self._step)
                self._samples = order.batch_size_of(self._step)
                self._set_rates(factor)
                for unit in self._units:
                    arena.enter(rank, Phase.DATA)
                    loaded = loader.take(self._step, unit) or self._borrowed(samples, order)
                    if loaded is None:
                        assert isinstance(stepper, Stepper)
                        stepper.skip_shard(unit.leaf)
                        continue
                    arena.enter(rank, Phase.COMPUTE)
                    stepper.begin_shard(unit.leaf, model_seed(job.seed, self._step, unit))
                    yield from self._one_shard(loaded, order.epoch_of(self._step))
                    stepper.end_shard()
                self._commit(stepper, order)
        finally:
            self._current = None
            stepper.abandon()
            loader.close()

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
            self._attached().backward(loss, chosen / self._samples)

    def log(self, **values: float) -> None:
        """Log means over the current shard's samples; the run keeps their means over the step.

        Raises:
            JobError: There is no current shard, or there are more values than fit.
        """
        if self._current is None:
            raise JobError("session.log belongs inside the loop over session.shards")
        self._attached().log({name: float(value) for name, value in values.items()})

    def evaluate_each_epoch(self, dataset: object, measure: Measure) -> None:
        """Evaluate after every epoch, or as often as the job says; the results go to the run's
        metrics, and the job's `evaluation.best` is looked for among them.

        Args:
            dataset: What to measure on.
            measure: Called with the model and a batch, gives means over the batch, by name.
        """
        self._evaluation = lambda: self.evaluate(dataset, measure)

    def evaluate(self, dataset: object, measure: Measure) -> dict[str, float]:
        """The means over `dataset` of what `measure` gives for batches, exact and the same on all
        workers. Every worker must call it, outside the loop or at the same step.

        Raises:
            JobError: The model is not attached, or `measure` gave different names.
        """
        self._attached()
        assert self._replica is not None
        assert self._evaluator is not None
        with self._autocast():
            found = self._evaluator.evaluate(
                self._replica.model, as_dataset(dataset), measure, self._step
            )
        self.metrics |= found
        return found

    def close(self) -> dict[str, Any]:
        """End the run on this worker: compare the replicas, save, and sum up."""
        self._group.barrier(Meeting.END, self._step)
        if self._replica is None:
            return {}
        checksum = self._replica.checksum()
        self._group.agree(Meeting.END, self._step, checksum, "different weights at the end")
        self._save(final=True)
        self._arena.enter(self._rank, Phase.LEFT)
        if self._rank != 0:
            return {}
        return {
            "steps": self._step,
            "loss": self.loss,
            "metrics": self.metrics,
            "best": None
            if self._best.value is None
            else {"step": self._best.step, "value": self._best.value},
            **self._journal.throughput(),
            "seconds": self._seconds(),
            "weights_sha256": self._replica.weights_sha256(),
        }

    def _seconds(self) -> dict[str, float]:
        """What the workers have spent their time on in this life, seconds, their mean."""
        ranks = range(self._arena.world_size)
        times = [self._arena.times(rank) for rank in ranks]
        totals = {phase.name.lower(): sum(time[phase] for time in times) for phase in Phase}
        return {name: round(total / len(ranks), 4) for name, total in totals.items() if total}

    def _phases(self) -> dict[str, float]:
        """What this worker has spent its time on since it was last asked, seconds."""
        before, self._times = self._times, self._arena.times(self._rank)
        spent = {phase.name.lower(): now - before[phase] for phase, now in self._times.items()}
        return {name: round(seconds, 6) for name, seconds in spent.items() if seconds}

    def _continue(self, order: dict[str, Any]) -> None:
        """Make sure that a resumed run walks on in the order in which it began."""
        changed = [key for key in self._order if self._order[key] != order[key]]
        if changed:
            key = changed[0]
            raise JobError(
                f"the run began with {key}={self._order[key]} in session.shards and now has "
                f"{order[key]}: samples would be used twice or never. Resume with the same data "
                "and epochs, or start a new run"
            )
        self._order = order

    def _commit(self, stepper: Stepper | DdpStepper, order: Order) -> None:
        committed = stepper.commit(self._step, self._arena.stop_requested)
        self._step += 1
        self.loss = committed.loss
        self._arena[self._rank, Word.SAMPLES] += self._samples
        assert self._replica is not None
        self._journal.step(
            committed,
            epoch=order.epoch_of(committed.step),
            samples=self._samples,
            rate=float(self._replica.optimizer.param_groups[0]["lr"]),
            phases=self._phases(),
        )
        improved = self._evaluate_after(committed.step, order)
        every = self.job.checkpoint.every_steps
        if committed.stop:
            self._save(final=True)
            raise StopRequested
        if improved or (every and self._step % every == 0):
            self._save(final=False)

    def _evaluate_after(self, step: int, order: Order) -> bool:
        """Evaluate if it is time to; returns whether the result is the best so far."""
        epoch, wish = order.epoch_of(step) + 1, self.job.evaluation
        due = epoch % wish.every_epochs == 0 or epoch == order.epochs
        if self._evaluation is None or not (due and order.ends_epoch(step)):
            return False
        results = self._evaluation()
        self._journal.evaluation(self._step, results)
        self._best = best_after(self._best, wish, self._step, results)
        return self._best.step == self._step

    def _save(self, *, final: bool) -> None:
        assert self._replica is not None
        self._arena.enter(self._rank, Phase.CHECKPOINT)
        _check_plain(self.state)
        now = Progress(
            step=self._step,
            state=self.state,
            loss=self.loss,
            metrics=self.metrics,
            best=self._best,
            order=self._order,
        )
        self._journal.checkpoint(self._replica, self._group, now, final=final)

    def _set_rates(self, factor: Callable[[int], float] | None) -> None:
        if factor is not None:
            assert self._replica is not None
            groups = self._replica.optimizer.param_groups
            for group, rate in zip(groups, self._base_rates, strict=True):
                group["lr"] = rate * factor(self._step)

    def _one_shard(self, loaded: Loaded, epoch: int) -> Iterator[Shard]:
        batch = loaded.batch
        if self._device.type != "cpu":
            batch = device.moved(batch, self._device)
        self._current = Shard(batch, loaded.size, self._step, epoch)
        with self._autocast():
            yield self._current
        self._current = None

    def _borrowed(self, samples: Dataset, order: Order) -> Loaded | None:
        """What a worker without samples computes where all must take part: samples of others, for
        which nothing counts. Two, because batch normalisation can make nothing of one.
        """
        if self.job.sync == "tree":
            return None
        indices = order.indices(self._step, range(order.num_shards))[:2]
        return Loaded(samples.batch(indices, generator_for("borrowed", self._step)), 0)

    def _autocast(self, *, enabled: bool = True) -> torch.autocast:
        mixed = enabled and self.job.precision == "bf16"
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=mixed)

    def _attached(self) -> Stepper | DdpStepper:
        if self._stepper is None:
            raise JobError("call session.attach(model, optimizer) first")
        return self._stepper


def _check_plain(state: dict[str, Any]) -> None:
    """Raises: JobError: `state` would not come back from a checkpoint as it is."""
    try:
        same = repr(json.loads(json.dumps(state))) == repr(state)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise JobError(
            "session.state must hold plain JSON values: numbers, strings, lists (no tuples), and "
            f"dictionaries with strings as keys; it holds {state!r:.200}"
        )
