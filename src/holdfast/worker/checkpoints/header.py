"""The header of a checkpoint: everything that its manifest says but for the files."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

import torch
from torch import nn

from holdfast.arena.replica import Replica
from holdfast.arena.state_dicts import COMPILED, plain_name
from holdfast.checkpoint.manifest import Header, HuggingFaceModel, Tensor
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import numerics_of
from holdfast.worker.progress import Progress


def header_of(
    spec: WorkerSpec, replica: Replica, progress: Progress, generation: int
) -> dict[str, Any]:
    """The header of a checkpoint of this step, as JSON values; the same on every worker."""
    layout = replica.layout
    job = spec.train_job
    return Header(
        step=progress.step,
        generation=generation,
        weights_config=job.weights_config(),
        tensors=tuple(
            Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset)
            for e in layout.entries
        ),
        size_bytes=layout.size_bytes,
        uninitialized=tuple(sorted(replica.uninitialized)),
        state_dicts=replica.state_dicts,
        hugging_face=hugging_face_model(replica.model, over_base=bool(replica.bases)),
        state=progress.user.committed_state,
        user_state=progress.user.captured,
        loss_scale=progress.loss_scale,
        costs=tuple(progress.costs),
        loss=progress.loss,
        metrics=progress.evaluations.metrics,
        best=progress.evaluations.best,
        evaluates=progress.followup.evaluates,
        order=progress.order,
        numerics=numerics_of(job.numerics, job.model, replica.flat.device),
        numerics_changes=tuple(progress.numerics_changes),
        versions={
            "holdfast": metadata.version("holdfast"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    ).model_dump(mode="json")


def hugging_face_model(model: nn.Module, *, over_base: bool = False) -> HuggingFaceModel | None:
    """The LoRA adapters of peft in `model`, or the model of transformers; imports neither.

    Args:
        model: The trained model.
        over_base: True if it has frozen weights, so that no checkpoint has it as a whole.
    """
    for name, module in model.named_modules():
        if COMPILED in module._modules:
            continue  # torch.compile gives it the attributes of what it compiles
        plain = plain_name(name)
        prefix = plain and f"{plain}."
        if hasattr(module, "peft_config"):
            return _adapters(module, prefix)
        config: Any = getattr(module, "config", None)
        if hasattr(config, "model_type") and hasattr(config, "to_json_string") and not over_base:
            values = json.loads(config.to_json_string(use_diff=False))
            values["architectures"] = [type(module).__name__]
            return HuggingFaceModel(prefix=prefix, config=values)
    return None


def _adapters(model: Any, prefix: str) -> HuggingFaceModel | None:
    """The adapters in use of a model of peft, if nothing else of it is trained."""
    adapter = model.active_adapter
    config = model.peft_config[adapter] if isinstance(adapter, str) else None
    if config is None or config.peft_type != "LORA" or config.modules_to_save or config.use_dora:
        return None
    values = json.loads(json.dumps(config.to_dict(), default=sorted)) | {"inference_mode": True}
    return HuggingFaceModel(prefix=prefix, config=values, adapter=adapter)
