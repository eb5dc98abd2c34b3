"""Partial weights: errors of user code that needs whole weights where a worker has a part."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

from holdfast.errors import JobError
from holdfast.job.settings import ParallelSettings

_PARTIAL: Final = re.compile(r"mixed torch\.Tensor and DTensor|[Mm]eta tensor|device meta")
"""PyTorch's errors for rows of a weight, and for a weight of another stage."""


@contextmanager
def partial_weights_explained(parallel: ParallelSettings) -> Iterator[None]:
    """A context for user code.

    Raises:
        JobError: It has used a weight of which this worker has a part, or none.
    """
    try:
        yield
    except RuntimeError as error:
        if not parallel.is_cut or not _PARTIAL.search(str(error)):
            raise
        raise outside_the_model(parallel).with_traceback(error.__traceback__) from None


def outside_the_model(parallel: ParallelSettings) -> JobError:
    """The error of code that computes with weights outside of the model's `forward`."""
    return JobError(
        f"with {parallel.words}, a worker has a part of the weights, and the model's forward alone "
        "has what it computes with; call the whole model, not its layers, and penalize weights by "
        "the optimizer's weight_decay"
    )


def refuse_state_dicts(model: nn.Module, parallel: ParallelSettings) -> None:
    """Raise an error where user code asks for a state dict, which would lack values."""
    refuse = functools.partial(_refuse, parallel.words)
    for module in model.modules():
        module.register_state_dict_pre_hook(refuse)  # type: ignore[no-untyped-call]


def _refuse(words: str, module: nn.Module, prefix: str, keep_vars: bool) -> None:  # noqa: ARG001
    if not keep_vars:  # with them, it is asked for names
        raise JobError(
            f"with {words}, no worker has the values of a state dict; checkpoints have those of "
            "the whole model, and holdfast export writes them"
        )
