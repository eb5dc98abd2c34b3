"""A Trainer whose steps are those of a run; see `loops`."""

from __future__ import annotations

from typing import Any, Final

import lightning.pytorch
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy

import holdfast
from holdfast.integrations.lightning import loggers, loops, refused
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
        loops.replace(self)
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
