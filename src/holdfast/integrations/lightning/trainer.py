"""A Trainer whose loops run the steps of a run.

Every worker runs them over all steps. What differs from the library's own loops:

    FitLoop.on_advance_start   enters an epoch in its middle, where the run is
    FitLoop.run                ends the run after the last step
    EpochLoop.reset            keeps the counts with which an epoch is entered
    EpochLoop.advance          a step begins: the state of the Trainer becomes part of the run's
    Optimization.run           nothing for all but the last micro-batch of a step: then all of it

What comes between two steps, such as callbacks, validation and files, every worker does alike. A
worker that replaces another one runs the script from its start, and enters the loops at the newest
step.
"""

from __future__ import annotations

from typing import Any, Final

import lightning.pytorch
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fit_loop import RestartStage, _FitLoop
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import SingleDeviceStrategy

import holdfast
from holdfast.integrations.lightning import loggers, refused
from holdfast.integrations.lightning.live import Live
from holdfast.integrations.lightning.placeholders import NoBatch

_PLACES: Final = ("accelerator", "devices", "num_nodes", "strategy")
"""Arguments whose part the run takes: how many workers there are, and where."""


class Trainer(lightning.pytorch.Trainer):  # type: ignore[misc]  # it has no types here
    """The library's Trainer, which trains in a run."""

    def __init__(self, **kwargs: Any) -> None:
        if not holdfast.is_worker():
            super().__init__(**kwargs)
            return
        refused.check_strategy(kwargs.get("strategy", "auto"))
        refused.check_arguments(kwargs)
        device = _device()
        own = {name: value for name, value in kwargs.items() if name not in _PLACES}
        strategy = RunStrategy(device)
        accelerator = "cpu" if device.type == "cpu" else "gpu"
        super().__init__(**own, strategy=strategy, accelerator=accelerator, devices=1)
        self.live = strategy.live = Live(self)
        _replace_loops(self)
        for callback in self.callbacks:
            if isinstance(callback, ModelCheckpoint):
                # It looks for the file, which another worker may have written already.
                callback._enable_version_counter = False
        loggers.name(self.loggers, holdfast.session().run_dir.name)

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Train as the library does; see `refused` for what is refused.

        Raises:
            JobError: A run cannot do what the Trainer is to do.
        """
        if holdfast.is_worker():
            names = ("model", "train_dataloaders", "val_dataloaders", "datamodule", "ckpt_path")
            refused.check_fit(self, {**dict(zip(names, args, strict=False)), **kwargs})
        super().fit(*args, **kwargs)


class RunStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Worker of a run, as the library sees it: alone on its device, and one of them writes files.

    Attributes:
        live: The training in the run.
    """

    live: Live

    @property
    def is_global_zero(self) -> bool:
        """True on the worker that writes files."""
        return self.live.is_main

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizer, as it is: what wraps it for the library would step it."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = self._lightning_optimizers = optimizers

    def setup_optimizers(self, trainer: Any) -> None:
        """Build the optimizer and the schedulers, and attach what is trained to the run."""
        build = super().setup_optimizers

        def built(_parameters: object) -> torch.optim.Optimizer:
            with refused.several_optimizers():
                build(trainer)
            optimizer: torch.optim.Optimizer = refused.checked_optimizer(self.optimizers)
            return optimizer

        self.live.begin(built)

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """The batch on the device; the loop's own batches hold nothing."""
        if isinstance(batch, NoBatch):
            return batch
        return super().batch_to_device(batch, *args, **kwargs)


def _device() -> torch.device:
    if torch.cuda.is_available() and holdfast.session().job.device != "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _replace_loops(trainer: Any) -> None:
    """Replace the loops of a Trainer that has not begun."""
    library = trainer.fit_loop
    loop = FitLoop(trainer, library.min_epochs, library.max_epochs)
    steps = library.epoch_loop
    loop.epoch_loop = EpochLoop(trainer, steps.min_steps, steps.max_steps)
    loop.epoch_loop.automatic_optimization = Optimization(trainer)
    trainer.fit_loop = loop


class FitLoop(_FitLoop):  # type: ignore[misc]  # it has no types here
    """Loop over the epochs."""

    def run(self) -> None:
        """Run the epochs, and end the run."""
        super().run()
        _live(self).finish()

    def on_advance_start(self) -> None:
        """Begin an epoch, unless it is entered in its middle."""
        if _live(self).is_entering:
            self._restart_stage = RestartStage.RESTARTED_MID_EPOCH
        super().on_advance_start()


class EpochLoop(_TrainingEpochLoop):  # type: ignore[misc]
    """Loop over the micro-batches of an epoch."""

    def reset(self) -> None:
        """Begin to count, unless an epoch is entered with the counts of the run."""
        if not _live(self).is_entering:
            super().reset()

    def advance(self, data_fetcher: Any) -> None:
        """Run a micro-batch; with the first one of a step, the step begins."""
        if self.batch_progress.current.ready % self.trainer.accumulate_grad_batches == 0:
            _live(self).begin_step()
        super().advance(data_fetcher)


class Optimization(_AutomaticOptimization):  # type: ignore[misc]
    """The part of a micro-batch that trains."""

    def run(self, _optimizer: Any, batch_idx: int, _kwargs: Any) -> dict[str, Any]:
        """Train a step with its last micro-batch; returns its loss, else nothing."""
        progress = self.optim_progress.optimizer
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            progress.zero_grad.increment_by(1)
        if self.trainer.fit_loop._should_accumulate():
            return {}
        progress.step.increment_ready()
        loss = _live(self).advance(batch_idx)
        progress.step.increment_completed()
        return {"loss": loss}


def _live(loop: Any) -> Live:
    live: Live = loop.trainer.live
    return live
