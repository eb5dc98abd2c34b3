"""Logs of training steps: what `self.log` is given for a shard becomes its mean over the step.

Every worker logs the means of a step alike, also one that has computed no shard of it. So a name
tells how it is to be logged, unless that is the library's default: `accuracy (epoch)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

from holdfast.errors import JobError

_FX: Final = "training_step"
_FLAGS: Final = {"step": "on_step", "epoch": "on_epoch", "bar": "prog_bar"}
_UNLOGGED: Final = "not for loggers"
_DEFAULT: Final = ["step"]
_NAME: Final = re.compile(rf"(.*) \(((?:step|epoch|bar|{_UNLOGGED}|, )+)\)")


@contextmanager
def of_shard(trainer: Any) -> Iterator[_ResultCollection]:
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


def means(logged: _ResultCollection) -> dict[str, float]:
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


def log_step(trainer: Any, logged: Mapping[str, float], samples: int) -> None:
    """Log the means of a step of so many samples, as `training_step` would."""
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
