"""The header of a checkpoint: everything that its manifest says but for the files."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

import torch
from torch import nn

from holdfast.arena.replica import Replica
from holdfast.checkpoint.manifest import Header, HuggingFaceModel, Tensor
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import numerics_of
from holdfast.worker.progress import Progress


def header_of(
    spec: WorkerSpec, replica: Replica, progress: Progress, generation: int
) -> dict[str, Any]:
    """The header of a checkpoint of this step, as JSON values; the same on every worker."""
    layout = replica.layout
    return Header(
        step=progress.step,
        generation=generation,
        weights_config=spec.job.weights_config(),
        tensors=tuple(
            Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset)
            for e in layout.entries
        ),
        size_bytes=layout.size_bytes,
        uninitialized=tuple(sorted(replica.uninitialized)),
        state_dicts=replica.state_dicts,
        # A model over a base is in no checkpoint as a whole.
        hugging_face=None if replica.bases else hugging_face_model(replica.model),
        state=progress.user.committed_state,
        user_state=progress.user.captured,
        loss_scale=progress.loss_scale,
        costs=tuple(progress.costs),
        loss=progress.loss,
        metrics=progress.evaluations.metrics,
        best=progress.evaluations.best,
        order=progress.order,
        numerics=numerics_of(spec.train_job, replica.flat.device),
        numerics_changes=tuple(progress.numerics_changes),
        versions={
            "holdfast": metadata.version("holdfast"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    ).model_dump(mode="json")


def hugging_face_model(model: nn.Module) -> HuggingFaceModel | None:
    """The model of the library transformers in `model`, if there is one; does not import it."""
    for name, module in model.named_modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "model_type") and hasattr(config, "to_json_string"):
            values = json.loads(config.to_json_string(use_diff=False))
            values["architectures"] = [type(module).__name__]
            return HuggingFaceModel(prefix=name and f"{name}.", config=values)
    return None
