"""A Trainer whose steps are those of a run.

Every worker runs the Trainer's own loop over all steps. What differs is in the methods below:

    get_train_dataloader   placeholders: a worker reads the samples of its own shards
    _inner_training_loop   attaches the model; enters the loop at the run's newest step
    get_batch_samples      the state of the Trainer becomes part of the run's
    training_step          nothing for all but the last micro-batch of a step: then the whole step
    optimizer.step         nothing: the step has updated the model

What comes between two steps, such as callbacks, evaluation and files, every worker does alike; only
one writes files. A worker that replaces another one runs the script from its start, and enters the
loop at the newest step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import torch
import transformers
from accelerate import PartialState
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from holdfast.errors import JobError
from holdfast.integrations.transformers import state
from holdfast.integrations.transformers.batches import ITEMS, Placeholders, as_read, placeholders
from holdfast.integrations.width import Width
from holdfast.worker.loop.steps import Steps
from holdfast.worker.session import is_worker, session
from holdfast.worker.shard import Shard

P = ParamSpec("P")
R = TypeVar("R")

STATE: Final = "trainer"
"""Name of the Trainer's state in `session.state`."""
_OF_THE_RUN: Final = "the state of the run"
"""Stands for a checkpoint from which the library's loop resumes."""


def _in_run(method: Callable[P, R]) -> Callable[P, R]:
    """A method that outside of a run is the library's."""

    @functools.wraps(method)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_worker():
            return method(*args, **kwargs)
        own: Callable[..., R] = getattr(super(LiveTrainer, args[0]), method.__name__)
        return own(*args[1:], **kwargs)

    return chosen


class LiveTrainer(transformers.Trainer):  # type: ignore[misc]  # it has no types here
    """A Trainer that trains in a run; see the module.

    Attributes:
        has_trained: True once `train` was called in a run.
    """

    has_trained = False
    _steps: Steps | None = None
    _data: DataLoader[Any]
    _width: Width

    @_in_run
    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the library does, except for what `_check` refuses.

        Raises:
            JobError: A run cannot do what the Trainer is to do.
        """
        names = ("resume_from_checkpoint", "trial", "ignore_keys_for_eval")
        _check(self, {**dict(zip(names, args, strict=False)), **kwargs})
        self.has_trained = True
        self.args._n_gpu = min(self.args.n_gpu, 1)  # this worker's
        return super().train(*args, **kwargs)

    @_in_run
    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Raises: JobError: A run trains once."""
        raise JobError("a run trains once; search with holdfast tune")

    # The loop, from its start to its end.

    @_in_run
    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._begin()
        if self._entry:
            kwargs["resume_from_checkpoint"] = _OF_THE_RUN
        return super()._inner_training_loop(*args, **kwargs)

    def _begin(self) -> None:
        """Attach what is trained, and join the other workers."""
        run = session()
        args = self.args
        workers = run.job.shards
        assert isinstance(workers, int), "a job that is not resolved"
        self._width = Width(
            micro_batch=args.per_device_train_batch_size,
            accumulated=args.gradient_accumulation_steps,
            workers=workers,
        )
        clip_norm = args.max_grad_norm or None
        run.adopt(batch=self._width.batch, shards=self._width.shards, clip_norm=clip_norm)
        self._data = as_read(
            super().get_train_dataloader(), self._width, self._get_num_items_in_batch
        )
        values = self.set_initial_training_values(args, self.get_train_dataloader())
        epochs, self._steps_per_epoch, *_, max_steps = values
        model = self.accelerator.prepare_model(self.model)
        model.train()
        _, optimizer = run.attach(lambda: model, self._built_optimizer)
        self.create_scheduler(num_training_steps=max_steps, optimizer=optimizer)
        run.register("scheduler", self.lr_scheduler)
        self.optimizer = _SteppedElsewhere(optimizer)
        self.accelerator.backward = self._backward
        saved = run.state.get(STATE)
        self._entry = 0 if saved is None else saved["state"]["global_step"]
        self._steps = run.steps(self._data, epochs=epochs, steps=max_steps)
        self._log_file = state.LogFile(self._steps.run_dir)
        self._set_main()

    def _built_optimizer(self, model: Any) -> torch.optim.Optimizer:
        """The library's optimizer of its model."""
        optimizer: torch.optim.Optimizer = self.create_optimizer(model)
        return optimizer

    @_in_run
    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, *args: Any, **kwargs: Any
    ) -> tuple[int, int]:
        super()._init_training_state(max_steps, num_update_steps_per_epoch, *args, **kwargs)
        self.state.global_step = self._entry
        epochs, steps = divmod(self._entry, num_update_steps_per_epoch)
        return epochs, steps * self.args.gradient_accumulation_steps

    @_in_run
    def _prepare_for_training(
        self, _max_steps: int, train_dataloader: Any, _resume_from_checkpoint: Any
    ) -> tuple[Any, Any]:
        self.model_wrapped = self.accelerator.prepare_model(self.model)  # it has forgotten it
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model, train_dataloader

    @_in_run
    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Random numbers follow from the step."""

    @_in_run
    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._keep_state()
        self._active.finish()
        self._set_main()
        return super()._finalize_training(*args, **kwargs)

    # A step.

    @_in_run
    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """The placeholders of a step, which begins: what the Trainer keeps is state of the run."""
        if self._entry is not None and self.state.global_step == self._entry:
            self._restore_state()
        self._keep_state()
        return super().get_batch_samples(epoch_iterator, *args, **kwargs)

    @_in_run
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Train a step with its last micro-batch; returns its loss, float32[], else zero."""
        if inputs:  # of a shard; see `_compute`
            return super().training_step(model, inputs, num_items_in_batch)
        loss = torch.zeros((), device=self.args.device)
        if self.accelerator.gradient_state.sync_gradients:
            self._active.advance(self._compute)
            self._set_main()
            loss += self._active.newest["loss"] or 0.0
            self._after_step(self._active.newest)
        return loss

    def _compute(self, shard: Shard) -> None:
        """Compute the loss of a shard as the Trainer does, and its gradient as the run does."""
        batch = shard.batch
        self._weight = float(shard.size)
        items = None
        if isinstance(batch, dict | transformers.BatchEncoding) and ITEMS in batch:
            self._weight = float(batch.pop(ITEMS))
            items = torch.tensor(max(1.0, self._weight), device=self.args.device)
        # Each shard is a whole one: the run weighs it.
        self.current_gradient_accumulation_steps = 1
        self._before_shard()
        super().training_step(self.model, batch, items)
        self._after_shard()

    def _before_shard(self) -> None:
        """Called before the loss of a shard is computed."""

    def _after_shard(self) -> None:
        """Called after the gradient of a shard is computed."""

    def _after_step(self, line: Mapping[str, Any]) -> None:
        """Called with the metrics line of a step."""

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        session().backward(loss, weight=self._weight)

    @_in_run
    def _clip_grad_norm(self, model: Any) -> Any:  # noqa: ARG002  # the library's
        return self._active.newest["norm"]

    @_in_run
    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return self._clip_grad_norm(model) if grad_norm is None else grad_norm

    @property
    def _active(self) -> Steps:
        assert self._steps is not None, "no step before the training loop"
        return self._steps

    # What is kept.

    def _keep_state(self) -> None:
        self.model.train()
        session().state[STATE] = self._captured()

    def _restore_state(self) -> None:
        """Take the state of the run, once, where the loop is entered."""
        saved = session().state.get(STATE)
        if saved is not None and self._entry:
            self._take(saved)
            self.state.log_history = self._log_file.lines(self._entry)
        self._entry = None

    def _captured(self) -> dict[str, Any]:
        return state.capture(self)

    def _take(self, saved: dict[str, Any]) -> None:
        state.restore(self, saved)

    @_in_run
    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the library does, also to a file of the run."""
        super().log(logs, *args, **kwargs)
        if self._steps is not None and self.args.should_save:
            self._log_file.append(self.state.log_history[-1])

    # One worker writes files.

    def _set_main(self) -> None:
        """Have the library take one worker for the main process: it writes files and logs."""
        number = 0 if self._active.is_main else 1
        shared = PartialState._shared_state
        shared["process_index"] = shared["local_process_index"] = number
        if hasattr(self, "state"):
            self.state.is_world_process_zero = self.state.is_local_process_zero = not number

    @_in_run
    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    @_in_run
    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        before = self.state.best_model_checkpoint
        super()._save_checkpoint(*args, **kwargs)
        # The library looks for the directory, which another worker may still write.
        self.state.best_model_checkpoint = before
        if self.state.best_global_step == self.state.global_step:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / folder)

    # The data.

    @_in_run
    def get_train_dataloader(self) -> DataLoader[Any]:
        """Stands for the micro-batches of an epoch."""
        batches: Any = self._data.batch_sampler
        return placeholders(self._width, len(batches.sampler))

    @_in_run
    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Samples of an epoch."""
        if isinstance(dataloader.dataset, Placeholders):
            dataloader = self._data
        return super().num_examples(dataloader)  # type: ignore[no-any-return]

    @_in_run
    def get_total_train_batch_size(self, args: Any) -> int:  # noqa: ARG002  # the library's
        """Samples of a step."""
        return self._width.batch


class _SteppedElsewhere:
    """The optimizer of a run, as the library sees it: a step of the run has stepped it.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def live(trainer: type[Any]) -> type[Any]:
    """A subclass of Trainer, such as one of your own, that trains in a run."""
    return type(trainer.__name__, (LiveTrainer, trainer), {"__module__": trainer.__module__})


class Trainer(LiveTrainer):
    """The library's Trainer, which trains in a run."""


def _check(trainer: Any, given: dict[str, Any]) -> None:
    """Check a Trainer before it trains.

    Args:
        trainer: The Trainer.
        given: The arguments of `train`, by name.

    Raises:
        JobError: It is to do what a run cannot; all of it is named.
    """
    args = trainer.args
    found = {
        "resume_from_checkpoint": (
            bool(given.get("resume_from_checkpoint")),
            "resume the run: holdfast train --resume",
        ),
        "trial": (given.get("trial") is not None, "use holdfast tune"),
        "FSDP": (trainer.is_fsdp_enabled, "remove fsdp"),
        "DeepSpeed": (trainer.is_deepspeed_enabled, "remove deepspeed"),
        "fp16": (args.fp16, "set bf16"),
        "torch_compile": (args.torch_compile, "remove it"),
        "auto_find_batch_size": (args.auto_find_batch_size, "set per_device_train_batch_size"),
        "train_sampling_strategy=batch_rebalance": (
            getattr(args, "train_sampling_strategy", "") == "batch_rebalance",
            "use random, or group_by_length",
        ),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in ("no", False),
            "the run's metrics count the tokens of language models",
        ),
        "an IterableDataset": (
            isinstance(trainer.train_dataset, IterableDataset),
            "give a data set with a length",
        ),
        "a layer-wise or paged optimizer that steps in the backward pass": (
            "layerwise" in str(args.optim) or "lomo" in str(args.optim),
            "use another optim",
        ),
    }
    refused = [f"{what} ({instead})" for what, (is_given, instead) in found.items() if is_given]
    if refused:
        raise JobError(f"a Trainer in a run cannot use {', '.join(refused)}")
    if trainer.has_trained:
        raise JobError("train() was called twice; a run has one training loop")
