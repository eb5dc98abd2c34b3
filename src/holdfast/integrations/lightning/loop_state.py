"""State of a Trainer: what it keeps from step to step, as plain values that every worker has alike.

Taken before a step, when its first micro-batch is not counted yet.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelSummary, ProgressBar
from lightning.pytorch.callbacks.device_stats_monitor import DeviceStatsMonitor
from torch import nn

from holdfast.errors import JobError

_SHOWN: Final = (DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar)
"""Callbacks that show something, and decide nothing."""
_CLOCK: Final = frozenset({"_last_time_checked"})
"""Attributes that are times of this host."""
_TENSOR: Final = "tensor"
_PLAIN: Final = (bool, int, float, str, type(None))
_CONNECTOR: Final = ("_first_loop_iter", "_current_fx")
_METRICS: Final = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


def capture(trainer: Any) -> dict[str, Any]:
    """The state of `trainer` as JSON values."""
    connector = trainer._logger_connector
    return {
        "loops": copy.deepcopy(trainer.fit_loop.state_dict()),
        "should_stop": trainer.should_stop,
        "results": [_result(each) for each in trainer.fit_loop.epoch_loop._results.values()],
        "connector": {name: getattr(connector, name) for name in _CONNECTOR},
        "metrics": {name: _plain(getattr(connector, name)) for name in _METRICS},
        "callbacks": [_attributes(each) for each in _kept(trainer.callbacks)],
    }


def restore_counts(loop: Any, saved: dict[str, Any]) -> None:
    """Have a loop and those in it count from where they were, without a restart of their own."""
    loop.load_state_dict(saved)
    for each in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
        each._restarting = each._loaded_from_state_dict = each._resuming_from_checkpoint = False


def restore(trainer: Any, saved: dict[str, Any]) -> None:
    """Take the rest of a state that `capture` gave."""
    device = trainer.strategy.root_device
    connector = trainer._logger_connector
    trainer.should_stop = saved["should_stop"]
    trainer.fit_loop.epoch_loop._results.clear()
    for each in saved["results"]:
        _restore_result(trainer, each, device)
    for name, value in saved["connector"].items():
        setattr(connector, name, value)
    for name, values in saved["metrics"].items():
        setattr(connector, name, _value(values, device))
    for callback, attributes in zip(_kept(trainer.callbacks), saved["callbacks"], strict=True):
        for name, value in attributes.items():
            setattr(callback, name, _value(value, device))


def modules(callbacks: list[Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules that callbacks keep, such as averages of the weights, by a name."""
    for number, callback in enumerate(callbacks):
        for name, value in vars(callback).items():
            if isinstance(value, nn.Module):
                yield f"callback-{number}-{name}", value


# What is logged.


def _result(each: Any) -> dict[str, Any]:
    meta = each.meta
    if not each.is_tensor:
        raise JobError(
            f"{meta.fx} logs a metric of torchmetrics, {meta.name}; log its value: metric.compute()"
        )
    cumulated = getattr(each, "cumulated_batch_size", None)
    return {
        "log": {
            "fx": meta.fx,
            "name": meta.name,
            "prog_bar": meta.prog_bar,
            "logger": meta.logger,
            "on_step": meta.on_step,
            "on_epoch": meta.on_epoch,
            "add_dataloader_idx": meta.add_dataloader_idx,
        },
        "reduce_fx": meta.reduce_fx.__name__,
        "value": _plain(each.value),
        "cumulated_batch_size": _plain(cumulated),
        "forward_cache": _plain(each._forward_cache),
        "has_reset": each.has_reset,
        "is_new": not each.update_called,
    }


def _restore_result(trainer: Any, saved: dict[str, Any], device: torch.device) -> None:
    """Log a value again, as the library will log it next time, and set its sums."""
    results = trainer.fit_loop.epoch_loop._results
    known = set(results)
    results.log(
        **saved["log"],
        value=torch.zeros((), device=device),
        reduce_fx=getattr(torch, saved["reduce_fx"]),
        sync_dist_fn=trainer.strategy.reduce,
        batch_size=1,
    )
    (key,) = set(results) - known
    each = results[key]
    if saved["is_new"]:
        each.reset()
    each.value = _value(saved["value"], device)
    if saved["cumulated_batch_size"] is not None:
        each.cumulated_batch_size = _value(saved["cumulated_batch_size"], device)
    each._forward_cache = _value(saved["forward_cache"], device)
    each.has_reset = saved["has_reset"]


# Values.


def _kept(callbacks: list[Any]) -> list[Any]:
    """Callbacks whose attributes are state."""
    return [each for each in callbacks if not isinstance(each, _SHOWN)]


def _attributes(callback: Any) -> dict[str, Any]:
    return {
        name: _plain(value)
        for name, value in vars(callback).items()
        if name not in _CLOCK and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or (isinstance(value, torch.Tensor) and value.ndim == 0)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, torch.Tensor):
        # As text, as it may be infinite.
        return {_TENSOR: repr(value.item()), "dtype": str(value.dtype).removeprefix("torch.")}
    return value


def _value(plain: Any, device: torch.device) -> Any:
    if isinstance(plain, list):
        return [_value(each, device) for each in plain]
    if isinstance(plain, dict) and _TENSOR in plain:
        text, dtype = plain[_TENSOR], getattr(torch, plain["dtype"])
        number = text == "True" if dtype is torch.bool else float(text)
        return torch.tensor(number, dtype=dtype, device=device)
    if isinstance(plain, dict):
        return {key: _value(each, device) for key, each in plain.items()}
    return plain
