"""Session: the API of user code. It needs no rank.

    def main(session):
        model, optimizer = session.attach(Net, lambda p: torch.optim.AdamW(p, lr=1e-3))
        for shard in session.shards(dataset, epochs=5):
            loss = F.cross_entropy(model(shard.x), shard.y)
            session.backward(loss)

`shards` yields the shards of this worker one by one. When the next one is requested and none is
left in the step, the gradient is reduced, checked, clipped, applied and committed. If another
worker was lost, more shards of the same step may come first. Leaving the loop never commits half a
step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Never, ParamSpec, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.base_cache import Build
from holdfast.data.dataset import Collate
from holdfast.data.loading.source import source_of
from holdfast.errors import Aborted, JobError
from holdfast.job.train_job import TrainJob
from holdfast.worker.devices import compile_every_shape
from holdfast.worker.evaluation import Measure
from holdfast.worker.loop.followups import Followups
from holdfast.worker.loop.main_only import MainOnly
from holdfast.worker.loop.steps import Steps
from holdfast.worker.loop.training_loop import TrainingLoop
from holdfast.worker.membership.attach import ModelFactory, OptimizerFactory
from holdfast.worker.membership.member import Member
from holdfast.worker.metric_states import Metrics, Results, tally_of
from holdfast.worker.progress import Progress
from holdfast.worker.shard import Shard
from holdfast.worker.unread_keys import ReadJob
from holdfast.worker.user_state.commit_hooks import CommitHooks, When
from holdfast.worker.user_state.schedule import Schedule, ScheduleFactory

K = TypeVar("K")
P = ParamSpec("P")

_OF_RANKS: Final = frozenset({"rank", "local_rank", "world_size", "is_main", "is_main_process"})
"""Attributes of sessions of other systems, on which a run must not depend."""


class Session:
    """A worker's view of the run."""

    current: ClassVar[Session | None] = None
    """That of this process; see `holdfast.session`."""

    def __init__(self, job: TrainJob, member: Member) -> None:
        self._job = ReadJob.of(job)
        self._member = member
        self._hooks = CommitHooks()
        self._followups = Followups(member)
        self._main_only = MainOnly(member)
        self._loop: TrainingLoop | None = None

    def __getattr__(self, name: str) -> Never:
        """Raises: AttributeError: There is no such attribute."""
        shown = "; what only one worker does belongs in session.main_only"
        raise AttributeError(
            f"a session has no {name}{shown if name in _OF_RANKS else ''}", name=name, obj=self
        )

    @property
    def job(self) -> TrainJob:
        """The job; `job.params` holds the parameters of the task."""
        return self._job

    @property
    def run_dir(self) -> Path:
        """The directory of the run."""
        return self._member.metrics.run_dir

    def adopt(self, **keys: Any) -> None:
        """Set keys of the job to what other code decides, such as the arguments of a library; the
        same on every worker, and before the model is attached.

        Raises:
            JobError: A value is wrong, the job says otherwise, or the model is attached.
        """
        self._main_only.refuse("adopt")
        job = self._member.job
        for key, value in keys.items():
            given = getattr(job, key)
            if given not in (value, TrainJob.model_fields[key].get_default()) and key != "shards":
                raise JobError(
                    f"the job says {key}={given}, and the code {key}={value}; remove the key from "
                    "the job, or set the same value"
                )
        self._member.adopt(keys)
        self._job = ReadJob.of(self._member.job)
        for key in keys:
            self._job.note_read(key)

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self._progress.step

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary that user code can keep values in.

        It is saved with every checkpoint, and restored when the run is resumed and in a
        replacement worker. So it must hold plain JSON values, and the same ones on every worker.
        Modify it in a function given to `on_commit`, not in the loop over shards.
        """
        return self._progress.user.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._progress.user.state = state

    @property
    def loss(self) -> float | None:
        """The loss of the newest step; None if there is none, or it is not finite."""
        if self._loop is not None:
            self._loop.settle()
        return self._progress.loss

    @property
    def metrics(self) -> Results:
        """The newest evaluation results."""
        return self._progress.evaluations.metrics

    @property
    def _progress(self) -> Progress:
        self._member.join_once()
        return self._member.progress

    def base(
        self, name: str, build: Build, *, key: Mapping[str, Any], cache: Path | None = None
    ) -> Mapping[str, torch.Tensor]:
        """Frozen tensors that all workers of a host share, such as quantized weights.

        They are built once on a host, in a process of their own, and mapped read-only. They are no
        state: no checkpoint and no state transfer has them, and a replacement worker does not wait
        for them. All hosts must have the same ones, bit for bit.

        Args:
            name: Their name in messages and directories.
            build: Yields the tensors by name. It must not use a GPU.
            key: Plain data that determine the tensors: another key is another base.
            cache: Directory for them, which several runs may share; by default in the run's.

        Returns:
            The tensors by name. Use them as parameters or buffers of the model that does not
            require a gradient; a process that writes to one is killed.

        Raises:
            JobError: They cannot be built, or the model is attached already.
        """
        return self._member.attached.base(name, build, key, cache)

    def attach(
        self,
        model: ModelFactory,
        optimizer: OptimizerFactory,
        *,
        schedule: ScheduleFactory | None = None,
        name: str = "",
    ) -> tuple[nn.Module, Optimizer]:
        """Build what is trained; with names, several models, each with its optimizer.

        The state of a resumed run is loaded on the next use of the session, at the latest in
        `shards`. Until then the model is as its factory has built it, the same on every worker.
        After the loop over shards the model is no longer part of the run's state.

        Args:
            model: Builds the model. Called with torch's generators seeded from the job.
            optimizer: Builds the optimizer. If its first parameter is called `model`, it is called
                with the model, else with the parameters that require a gradient. What it does not
                get is not trained; what is frozen now may be trained later.
            schedule: Called with `optimizer`, or `optimizer` and `total_steps`, it returns a
                scheduler of torch, which is stepped with every commit. Called with `total_steps`
                alone, it returns a function from the step to the factor on the learning rates.
            name: The model's name, where a run trains several.

        Raises:
            JobError: There is nothing to train, or two models do not have names of their own.
        """
        built = self._member.attached.add(model, optimizer, name)
        self._hooks.schedules.append(Schedule(built[1], schedule))
        return built

    def register(self, name: str, registered: K) -> K:
        """Make an object part of the run's state, next to the model.

        It is saved with every checkpoint, restored when the run is resumed and in a replacement
        worker, and compared between workers. Modify it in `on_commit`.

        Args:
            name: Its name in checkpoints and errors.
            registered: A module, such as `torch.optim.swa_utils.AveragedModel`, or any object with
                `state_dict` and `load_state_dict`, such as a scheduler of
                `torch.optim.lr_scheduler`.

        Returns:
            `registered`.

        Raises:
            JobError: The model is not attached, training has begun, or the name is taken.
        """
        models = self._member.models
        if models is None:
            raise JobError("call session.attach(model, optimizer) before session.register")
        if self._member.has_joined:
            raise JobError(
                f"session.register({name!r}, …) was called too late; call it right after "
                "session.attach"
            )
        models.register(name, registered)
        return registered

    def on_commit(self, callback: Callable[[], object]) -> None:
        """Call `callback` on every worker once per committed step, in order.

        Step a scheduler, update an average, or modify `session.state` here: a worker without a
        shard in a step does not run the loop over shards. `session.step` counts the new step
        already, and `session.loss` is its loss.
        """
        self._add_hook("commit", callback)

    def on_gradients(self, callback: Callable[[], object]) -> None:
        """Call `callback` on every worker once per step, in order, before the optimizers' step.

        Clip, scale, drop or add noise here: `parameter.grad` is the mean gradient of the whole
        batch, the same on all workers, after `clip_norm`, so that nothing that is added is clipped
        away. Generators are seeded. A step that `non_finite` skips calls nothing. In the loop,
        `parameter.grad` is the shard's part of the gradient, and can only be read.
        """
        self._add_hook("gradients", callback)

    def _add_hook(self, when: When, callback: Callable[[], object]) -> None:
        self._main_only.refuse(f"on_{when}")
        parallel = self._member.job.parallel
        if when == "gradients" and parallel.is_cut:
            raise JobError(
                f"{parallel.words} does not support session.on_gradients, as no worker has the "
                "whole gradient; set clip_norm to clip it"
            )
        if self._loop is not None:
            raise JobError(f"session.on_{when} was called in the loop over shards; call it before")
        self._hooks.add(when, callback)

    def main_only(self, function: Callable[P, object]) -> Callable[P, None]:
        """A decorator for a function that only one worker runs, such as one that prints or draws.

        It is the first worker that takes part. The function may look at the model and the session,
        and must not change them. Random numbers that it draws, buffers that a forward pass updates
        and training modes are restored. Called in `on_commit`, it runs after all commit hooks of
        the step. A failure of that worker can omit a call, or repeat it; `holdfast.train` calls
        its `on_event` exactly once for each step.

        Args:
            function: Function to run; its result is dropped.
        """

        @functools.wraps(function)
        def on_one_worker(*args: P.args, **kwargs: P.kwargs) -> None:
            call = functools.partial(function, *args, **kwargs)
            self._main_only.call(call, after_commit=self._hooks.running == "commit")

        return on_one_worker

    def shards(
        self,
        data: object,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        collate: Collate | None = None,
    ) -> Iterator[Shard]:
        """Iterate over `data`, from the run's current step.

        Args:
            data: A map-style or iterable data set of PyTorch or Hugging Face, a DataLoader, or a
                `holdfast.Dataset`.
            epochs: Passes through it; by default, the job's `epochs`.
            steps: Steps of the run, instead of or as a limit on `epochs`.
            collate: Makes a batch of a list of samples; by default they are stacked. It may leave
                some out: the rows that it makes are counted, unless it makes another number of
                the samples one by one. So packed samples count as they were read.

        Yields:
            The shards of this worker; call `backward` once for each. One of which no sample is
            left is not yielded.

        Raises:
            JobError: The model is not attached, this is the second loop, or the data cannot be
                read so by every worker.
        """
        loop = self._begin_loop("shards", data, epochs, steps, collate, pauses=False)
        yield from filter(None, loop.run())

    def steps(
        self,
        data: object,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        collate: Collate | None = None,
    ) -> Steps:
        """Train as `shards` does, in a loop of other code: it asks for the steps, and does work of
        its own between them, on every worker alike. What it changes then is state, as what a
        function given to `on_commit` changes.

        Args:
            data, epochs, steps, collate: Arguments of `shards`.

        Raises:
            JobError: As `shards`.
        """
        loop = self._begin_loop("steps", data, epochs, steps, collate, pauses=True)
        return Steps(loop, self._member)

    def _begin_loop(
        self,
        call: str,
        data: object,
        epochs: int | None,
        steps: int | None,
        collate: Collate | None,
        *,
        pauses: bool,
    ) -> TrainingLoop:
        self._main_only.refuse(call)
        if epochs is None and steps is None:
            epochs = self.job.epochs
        if (epochs or 0) < 0 or (steps or 0) < 0 or not (epochs or steps):
            raise JobError(f"session.{call} needs epochs or steps above 0, not {epochs or steps}")
        if self._loop is not None:
            raise JobError(
                f"session.{call} was called twice; a run has one training loop, over all epochs: "
                "give their number as epochs="
            )
        self._member.join_once()
        _ = self._member.joined  # refuses a task that has attached no model
        source = source_of(data, collate)
        compile_every_shape()
        self._loop = TrainingLoop(
            self._job,
            self._member,
            self._followups,
            self._hooks,
            self._main_only,
            source,
            epochs or 0,
            steps or 0,
            pauses=pauses,
        )
        self._followups.in_loop = True
        return self._loop

    def backward(
        self, loss: torch.Tensor, *, weight: float | None = None, trains: nn.Module | None = None
    ) -> None:
        """Record the gradient of the current shard.

        Args:
            loss: The mean over the shard's samples, a scalar.
            weight: The shard's weight among the shards of its step; by default `shard.size`. Give
                the number of tokens, say, if the loss is a mean over tokens.
            trains: The model that this step trains, one of several; by default, all that the loss
                depends on. The same for all shards of a step. The optimizers of the other models
                are not stepped.

        Raises:
            JobError: There is no current shard, the loss is not a scalar, or this is the second
                call for the shard.
        """
        self._loop_at_shard("backward").backward(loss, weight, trains)

    def log(self, **values: float) -> None:
        """Log means over the current shard's samples; the run keeps their means over the step.

        Raises:
            JobError: There is no current shard, or there are more values than fit.
        """
        self._loop_at_shard("log").log(values)

    def evaluate_each_epoch(
        self,
        data: object,
        measure: Measure,
        *,
        metrics: Metrics | None = None,
        collate: Collate | None = None,
    ) -> None:
        """Evaluate after every epoch, or as often as the job says. The results go to the run's
        metrics; the job's `evaluation.best` names one of them. Call it again to evaluate on
        further data, with other names.

        Args:
            data, measure, metrics, collate: Arguments of `evaluate`.
        """
        self._job.note_read("evaluation")
        self._followups.evaluate_each_epoch(source_of(data, collate), measure, tally_of(metrics))

    def evaluate(
        self,
        data: object,
        measure: Measure,
        *,
        metrics: Metrics | None = None,
        collate: Collate | None = None,
    ) -> Results:
        """The means of `measure` over `data`, or the `metrics` of what it returns: exact, and the
        same on all workers.

        Every worker must call it, outside the loop or at the same step.

        Args:
            data: Data to evaluate on; see `shards`.
            measure: Called with the model and a batch. Returns means over the batch by name, or,
                for `metrics`, a tensor or a tuple, such as predictions and targets.
            metrics: By name, as in a dictionary or a `MetricCollection`: metrics of torchmetrics,
                which are updated with what `measure` returns for each batch; or functions, which
                are called once with what it returned for all samples, in a fixed order. They give
                numbers, tensors, or lists or dictionaries of these.
            collate: Argument of `shards`.

        Returns:
            The results by name: numbers, or lists of numbers.

        Raises:
            JobError: The model is not attached, or `measure` or `metrics` gave something else.
        """
        self._main_only.refuse("evaluate")
        if self._hooks.running:
            raise JobError("session.evaluate belongs in the loop over shards, not in a hook")
        self._member.join_once()
        if self._loop is not None and self._loop.is_checking:
            return self._followups.newest  # the other members are not at this call
        source = source_of(data, collate)
        tally = tally_of(metrics)
        while True:
            try:
                return self._followups.evaluate(source, measure, tally)
            except Aborted:
                self._member.join()

    def _loop_at_shard(self, call: str) -> TrainingLoop:
        """The loop over shards, for a call that belongs to the current shard."""
        self._main_only.refuse(call)
        if self._loop is None or self._loop.shard is None:
            raise JobError(f"session.{call} belongs inside the loop over session.shards")
        return self._loop


def session() -> Session:
    """The session of this process, for a task without a parameter.

    Raises:
        JobError: This process is no worker.
    """
    if Session.current is None:
        raise JobError(
            "holdfast.session() was called in a process that is no worker; run the code by "
            "holdfast train"
        )
    return Session.current


def is_worker() -> bool:
    """True in a worker of a training job."""
    return Session.current is not None
