"""State of a Trainer: what it keeps from step to step, as plain values that every worker has alike.

The log history is no state: it grows with every step. It is a file of the run.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.rundir import json_lines

LOG_FILE: Final = "trainer-log.jsonl"
"""Lines of the Trainer's log history."""
_OF_STATE: Final = (
    "epoch", "global_step", "best_metric", "best_global_step", "best_model_checkpoint",
)  # fmt: skip
_OF_TRAINER: Final = ("_total_loss_scalar", "_globalstep_last_logged")
_PLAIN: Final = (bool, int, float, str, type(None))


def capture(trainer: Any) -> dict[str, Any]:
    """The state of `trainer` as JSON values."""
    state = {name: _plain(getattr(trainer.state, name)) for name in _OF_STATE}
    own = {name: _plain(getattr(trainer, name)) for name in _OF_TRAINER}
    return {
        "state": state,
        "own": own,
        "tr_loss": trainer._tr_loss.item(),
        "control": {name: each for name, each in vars(trainer.control).items() if _is_plain(each)},
        "callbacks": [_attributes(each) for each in _kept_callbacks(trainer)],
    }


def restore(trainer: Any, saved: dict[str, Any]) -> None:
    """Take a state that `capture` gave."""
    saved = copy.deepcopy(saved)
    for name, value in saved["state"].items():
        setattr(trainer.state, name, value)
    for name, value in saved["own"].items():
        setattr(trainer, name, value)
    trainer._tr_loss = torch.tensor(saved["tr_loss"], device=trainer.args.device)
    vars(trainer.control).update(saved["control"])
    for callback, attributes in zip(_kept_callbacks(trainer), saved["callbacks"], strict=True):
        vars(callback).update(attributes)


def _kept_callbacks(trainer: Any) -> list[Any]:
    """Callbacks whose attributes are state: not those that only one worker shows or sends."""
    shown = ("transformers.integrations", "transformers.utils.notebook")
    names = ("ProgressCallback", "PrinterCallback")
    return [
        each
        for each in trainer.callback_handler.callbacks
        if not type(each).__module__.startswith(shown) and type(each).__name__ not in names
    ]


def _attributes(callback: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(callback).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or _is_number(value)


def _is_number(value: Any) -> bool:
    """True for a number of numpy or a tensor with one element."""
    return hasattr(value, "item") and getattr(value, "ndim", None) == 0


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.item() if _is_number(value) else value


class LogFile:
    """The log history in a file, which one worker writes.

    Args:
        run_dir: Directory of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG_FILE

    def append(self, line: dict[str, Any]) -> None:
        """Write what was logged."""
        with json_lines.JsonLines(self._path) as file:
            file.write(**_plain(line))

    def lines(self, steps: int) -> list[dict[str, Any]]:
        """Lines logged in the first `steps` steps; work that was done again counts once."""
        if not self._path.exists():
            return []
        lines = [each for each in json_lines.read(self._path) if each["step"] <= steps]
        return list({(each["step"], *sorted(each)): each for each in lines}.values())
