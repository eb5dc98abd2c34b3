"""Live: the training of a Trainer in a run, from its start to its end."""

from __future__ import annotations

import copy
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.data_connector import (
    _DataLoaderSource,
    _request_dataloader,
)
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

import holdfast
from holdfast.errors import JobError
from holdfast.integrations.lightning import loggers, loop_state, refused
from holdfast.integrations.lightning.placeholders import NoBatches, as_read
from holdfast.integrations.width import Width
from holdfast.worker.loop.steps import Steps
from holdfast.worker.shard import Shard

STATE: Final = "lightning"
"""Name of the Trainer's state in `session.state`."""


class Live:
    """The training of one Trainer.

    Args:
        trainer: The Trainer.

    Attributes:
        is_entering: True until the loop is where the run is.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._steps: Steps | None = None
        self._saved: dict[str, Any] | None = None
        self._batch_idx = 0
        self.is_entering = False
        self._set_main()

    @property
    def has_begun(self) -> bool:
        """True once a step can be trained."""
        return self._steps is not None

    @property
    def is_main(self) -> bool:
        """True on the worker that writes files; on none before the workers have joined."""
        return self._steps is not None and self._steps.is_main

    def begin(self, built: Callable[[Any], torch.optim.Optimizer]) -> None:
        """Attach what is trained, and join the other workers.

        Args:
            built: Builds the optimizer, and the schedulers.
        """
        session = holdfast.session()
        trainer = self._trainer
        data = self._read()
        module = trainer.lightning_module
        module.trainer = weakref.proxy(trainer)  # no part of the model, whose changes are state
        session.attach(lambda: module, built)
        for number, config in enumerate(trainer.lr_scheduler_configs):
            session.register(f"scheduler-{number}", config.scheduler)
        for name, module in loop_state.modules(trainer.callbacks):
            session.register(name, module)
        self._saved = copy.deepcopy(session.state.get(STATE))
        epochs = max(trainer.max_epochs or 0, 0)
        self._steps = session.steps(data, epochs=epochs, steps=max(trainer.max_steps, 0))
        if self._saved is not None:
            self.is_entering = not self._saved["is_over"]
            loop_state.restore_counts(trainer.fit_loop, self._saved["loops"])
            trainer.num_sanity_val_steps = 0
        self._set_main()

    def _read(self) -> DataLoader[Any]:
        """The Trainer's samples as the run reads them; its loop gets placeholders."""
        session = holdfast.session()
        trainer = self._trainer
        workers = session.job.shards
        assert isinstance(workers, int), "a job that is not resolved"
        loop = trainer.fit_loop
        library: Any = refused.checked_loader(_request_dataloader(loop._data_source))
        width = Width(
            micro_batch=library.batch_size,
            accumulated=trainer.accumulate_grad_batches,
            workers=workers,
        )
        clip_norm = trainer.gradient_clip_val or None
        session.adopt(batch=width.batch, shards=width.shards, clip_norm=clip_norm)
        data = as_read(library, width)
        samples: Any = data.sampler
        count = width.micro_batches(len(samples))
        loop._data_source = _DataLoaderSource(NoBatches(count), "train_dataloader")
        return data

    def begin_step(self) -> None:
        """Have the state of the Trainer as it is before a step become part of the run's."""
        if self.is_entering:
            assert self._saved is not None, "entered without a state"
            loop_state.restore(self._trainer, self._saved)
            self.is_entering = False
        self._keep_state(is_over=False)

    def advance(self, batch_idx: int) -> torch.Tensor:
        """Train a step; returns its loss, float32[]."""
        self._batch_idx = batch_idx
        self._active.advance(self._compute)
        self._set_main()
        line = self._active.newest
        _log_step(self._trainer, line["logged"], line["samples"])
        loss = line["loss"]
        return torch.tensor(
            float("nan") if loss is None else loss, device=self._trainer.strategy.root_device
        )

    def _compute(self, shard: Shard) -> None:
        """Compute the loss of a shard as the library does, and its gradient as the run does."""
        trainer = self._trainer
        module = trainer.lightning_module
        batch = trainer.precision_plugin.convert_input(shard.batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        kwargs = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, self._batch_idx)
        with _logs_of_shard(trainer) as logged:
            output = call._call_strategy_hook(trainer, "training_step", *kwargs.values())
        loss = ClosureResult.from_training_step_output(output, 1).closure_loss
        if loss is None:
            raise holdfast.JobError(
                "training_step returned None; return a loss, such as one of 0 times the output"
            )
        session = holdfast.session()
        session.backward(loss)
        session.log(**_means(logged))

    def finish(self) -> None:
        """End the run after the newest step."""
        if self._steps is None:
            return  # nothing was to be trained
        self._keep_state(is_over=True)
        self._steps.finish()
        self._set_main()

    @property
    def _active(self) -> Steps:
        assert self._steps is not None, "no step before the training loop"
        return self._steps

    def _keep_state(self, *, is_over: bool) -> None:
        captured = {**loop_state.capture(self._trainer), "is_over": is_over}
        holdfast.session().state[STATE] = captured

    def _set_main(self) -> None:
        """Have the library take one worker for the main process: it writes files and logs."""
        rank_zero_only.rank = 0 if self.is_main else 1
        if self.is_main:
            trainer = self._trainer
            loggers.take_over(trainer.loggers, trainer.fit_loop.epoch_loop._batches_that_stepped)


_FX: Final = "training_step"
_FLAGS: Final = {"step": "on_step", "epoch": "on_epoch", "bar": "prog_bar"}
_UNLOGGED: Final = "not for loggers"
_DEFAULT: Final = ["step"]
_NAME: Final = re.compile(rf"(.*) \(((?:step|epoch|bar|{_UNLOGGED}|, )+)\)")


@contextmanager
def _logs_of_shard(trainer: Any) -> Iterator[_ResultCollection]:
    """Collect what is logged while a shard is computed, apart from what the Trainer has logged."""
    loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    kept, current = loop._results, connector._current_fx
    loop._results = _ResultCollection(training=True)
    loop._results.batch_size = 1
    try:
        yield loop._results
    finally:
        loop._results, connector._current_fx = kept, current


def _means(logged: _ResultCollection) -> dict[str, float]:
    """Means over a shard by name.

    Raises:
        JobError: Something else was logged.
    """
    return {_name(each.meta): _mean(each) for each in logged.values()}


def _mean(each: Any) -> float:
    if not each.is_tensor:
        raise JobError(
            f"training_step logs a metric of torchmetrics, {each.meta.name}; log a number, which "
            "is averaged over the step, or log the metric in validation_step"
        )
    if not each.meta.is_mean_reduction:
        raise JobError(
            f"training_step logs {each.meta.name} with reduce_fx={each.meta.reduce_fx.__name__}; "
            "a run keeps means of a step: remove reduce_fx"
        )
    return float(each.compute() if each.meta.on_epoch else each.value)


def _name(meta: Any) -> str:
    flags = [flag for flag, name in _FLAGS.items() if getattr(meta, name)]
    if not meta.logger:
        flags.append(_UNLOGGED)
    return str(meta.name) if flags == _DEFAULT else f"{meta.name} ({', '.join(flags)})"


def _log_step(trainer: Any, logged: Mapping[str, float], samples: int) -> None:
    """Log the means of a step of so many samples, as `training_step` would.

    Every worker logs them alike, also one that has computed no shard of the step. So a name tells
    how it is to be logged, unless that is the library's default: `accuracy (epoch)`.
    """
    module = trainer.lightning_module
    before = module._current_fx_name
    module._current_fx_name = _FX
    for full, value in logged.items():
        match = _NAME.fullmatch(full)
        name, flags = (match[1], match[2].split(", ")) if match else (full, _DEFAULT)
        module.log(
            name,
            torch.tensor(float(value), device=trainer.strategy.root_device),
            batch_size=samples,
            logger=_UNLOGGED not in flags,
            **{argument: flag in flags for flag, argument in _FLAGS.items()},
        )
    module._current_fx_name = before
