"""Refusals: what a Trainer cannot do in a run, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from holdfast.errors import JobError

_ONLY_OF_RANKS: Final = (DDPStrategy, SingleDeviceStrategy)
"""Strategies that say where workers are, which the run decides."""
_ARGUMENTS: Final = {
    "barebones": "remove it",
    "fast_dev_run": "run the script without holdfast, or set max_steps",
    "limit_train_batches": "give a torch.utils.data.Subset",
    "max_time": "set max_epochs or max_steps; clocks differ between workers",
    "overfit_batches": "give a torch.utils.data.Subset",
    "plugins": "remove it",
    "reload_dataloaders_every_n_epochs": "give one loader, whose sampler may follow set_epoch",
}
"""Arguments of a Trainer that are refused unless they are unset."""
_HOOKS: Final = (
    "backward", "configure_gradient_clipping", "on_after_backward", "on_before_backward",
    "on_before_optimizer_step", "on_before_zero_grad", "optimizer_step", "optimizer_zero_grad",
)  # fmt: skip
"""Hooks of a module, and some of callbacks, within a step."""
_CALLBACKS: Final = (GradientAccumulationScheduler, StochasticWeightAveraging, Timer)


def check_strategy(strategy: Any) -> None:
    """Raises: JobError: A strategy divides more than the samples of a step."""
    if isinstance(strategy, str):
        allowed = strategy == "auto" or strategy.startswith(("ddp", "single_device"))
    else:
        allowed = strategy is None or isinstance(strategy, _ONLY_OF_RANKS)
    if not allowed:
        raise JobError(
            f"a Trainer in a run cannot use strategy={strategy}; remove it: the run divides the "
            "batch among its workers"
        )


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raises: JobError: A Trainer is given what a run cannot do; all of it is named."""
    found = [(name, instead) for name, instead in _ARGUMENTS.items() if _is_set(given.get(name))]
    if str(given.get("precision")).startswith("16"):
        found.append(("precision=16", "set bf16-mixed"))
    if given.get("gradient_clip_algorithm") == "value" and given.get("gradient_clip_val"):
        found.append(("gradient_clip_algorithm=value", "clip by norm"))
    if not isinstance(given.get("val_check_interval") or 1.0, int | float):
        found.append(("val_check_interval as a time", "give a number of batches"))
    _refuse(found)


def check_fit(trainer: Any, given: Mapping[str, Any]) -> None:
    """Check what a Trainer is to train.

    Args:
        trainer: The Trainer.
        given: The arguments of `fit`, by name.

    Raises:
        JobError: A run cannot train it so; all of it is named.
    """
    if trainer.live.has_begun:
        raise JobError("fit() was called twice; a run has one training loop")
    module = given.get("model")
    if not isinstance(module, LightningModule):
        raise JobError(
            f"fit was given a {type(module).__module__}.{type(module).__qualname__}; give it a "
            "LightningModule of lightning.pytorch, uncompiled, not of pytorch_lightning"
        )
    found = []
    if given.get("ckpt_path") is not None:
        found.append(("ckpt_path", "resume the run: holdfast train --resume"))
    if not module.automatic_optimization:
        found.append(("manual optimization", "let training_step return the loss"))
    in_step = "what it does belongs in training_step, or between steps: on_train_batch_end"
    found += [(name, in_step) for name in _HOOKS if is_overridden(name, module)]
    if is_overridden("on_before_batch_transfer", module):
        found.append(("on_before_batch_transfer", "use on_after_batch_transfer"))
    for callback in trainer.callbacks:
        found += _of_callback(callback)
    _refuse(found)


def _of_callback(callback: Callback) -> list[tuple[str, str]]:
    name = type(callback).__name__
    found = []
    if isinstance(callback, _CALLBACKS):
        found.append((name, "remove it"))
    if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
        found.append((f"train_time_interval of {name}", "use every_n_train_steps"))
    if type(callback).__module__.startswith("lightning."):
        return found
    hooks = [each for each in _HOOKS if hasattr(Callback, each)]
    own = [each for each in hooks if is_overridden(each, callback, parent=Callback)]
    return found + [(f"{hook} of {name}", "use on_train_batch_end") for hook in own]


def checked_loader(given: Any) -> DataLoader[Any]:
    """The only loader of training samples.

    Raises:
        JobError: A run cannot read like it.
    """
    if isinstance(given, list | tuple) and len(given) == 1:
        (given,) = given
    if not isinstance(given, DataLoader):
        raise JobError(
            f"the training samples are given as a {type(given).__name__}; give one DataLoader"
        )
    if isinstance(given.dataset, IterableDataset):
        raise JobError("the training samples are an IterableDataset; give one with a length")
    if type(given.batch_sampler) is not BatchSampler:
        raise JobError(
            "the DataLoader of the training samples has a batch_sampler of its own, or no "
            "batches; give it batch_size, and a sampler"
        )
    if isinstance(given.sampler, DistributedSampler):
        raise JobError(
            "the DataLoader of the training samples has a DistributedSampler, and the run divides "
            "them itself; give it shuffle=True, or a sampler of all samples"
        )
    return given


@contextmanager
def several_optimizers() -> Iterator[None]:
    """Raises: JobError: The library finds several optimizers within the block."""
    try:
        yield
    except RuntimeError as error:
        if "multiple optimizers" not in str(error):
            raise
        raise JobError(
            "configure_optimizers gives several optimizers; give one, with groups of parameters"
        ) from None


def checked_optimizer(built: list[Any]) -> torch.optim.Optimizer:
    """The only optimizer.

    Raises:
        JobError: There is none.
    """
    (optimizer,) = built
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise JobError("configure_optimizers gives no optimizer, so nothing would be trained")
    return optimizer


def _is_set(value: Any) -> bool:
    return bool(value) and not (isinstance(value, float) and value == 1.0)


def _refuse(found: list[tuple[str, str]]) -> None:
    if found:
        named = ", ".join(f"{what} ({instead})" for what, instead in found)
        raise JobError(f"a Trainer in a run cannot use {named}")
