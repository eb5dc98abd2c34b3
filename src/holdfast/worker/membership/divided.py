"""Divided models: what a model must be so that each worker can hold a part of it."""

from __future__ import annotations

from torch import nn

from holdfast.arena.replica import Trained
from holdfast.errors import JobError
from holdfast.job.settings import ParallelSettings


def check_divisible(trained: Trained, parallel: ParallelSettings, *, num_models: int) -> None:
    """Check what is trained, before it is divided.

    Args:
        trained: The model and what belongs to it.
        parallel: How it is divided.
        num_models: Models that user code has attached.

    Raises:
        JobError: It cannot be divided.
    """
    synchronized = any(isinstance(each, nn.SyncBatchNorm) for each in trained.model.modules())
    kept = next(iter(trained.kept), "")
    refused = (
        (num_models > 1, "several models", "attach one"),
        (trained.bases, "frozen tensors of session.base", "remove them"),
        (kept, f"a module given to session.register ({kept})", "remove it"),
        (synchronized, "SyncBatchNorm", "use BatchNorm, whose statistics are averaged"),
    )
    for is_given, what, instead in refused:
        if is_given:
            raise JobError(f"{parallel.words} does not support {what}; {instead}")
