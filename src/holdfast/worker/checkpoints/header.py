"""The header of a checkpoint: everything that its manifest says except for the files."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from holdfast.arena.nested_optimizers import states_of
from holdfast.arena.replica import MODEL, Replica
from holdfast.arena.state_dicts import COMPILED, plain_name
from holdfast.checkpoint.manifest import Header, HuggingFaceModel, Tensor
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import numerics_of
from holdfast.worker.progress import Progress


def header_of(
    spec: WorkerSpec, replica: Replica, progress: Progress, generation: int
) -> dict[str, Any]:
    """The header of a checkpoint of this step, as JSON values; the same on every worker."""
    layout = replica.holding.whole
    job = spec.train_job
    return Header(
        step=progress.step,
        generation=generation,
        weights_config=job.weights_config(),
        tensors=tuple(
            Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset, strides=e.strides)
            for e in layout.entries
        ),
        size_bytes=layout.size_bytes,
        uninitialized=(*replica.uninitialized, *replica.uninitialized_elsewhere),
        state_dicts=replica.state_dicts,
        hugging_face=hugging_face_model(replica),
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


def hugging_face_model(replica: Replica) -> HuggingFaceModel | None:
    """The adapters of peft in the trained model, or the model of transformers. No model with frozen
    weights of a base: no checkpoint has it as a whole.
    """
    for name, module in replica.model.named_modules():
        if COMPILED in module._modules:
            continue  # torch.compile gives it the attributes of what it compiles
        plain = plain_name(name)
        prefix = plain and f"{plain}."
        if hasattr(module, "peft_config"):
            return _adapters(module, prefix, replica)
        config: Any = getattr(module, "config", None)
        is_of_transformers = hasattr(module, "from_pretrained") and hasattr(config, "model_type")
        if is_of_transformers and not replica.bases:
            values = json.loads(config.to_json_string(use_diff=False))
            values["architectures"] = [type(module).__name__]
            return HuggingFaceModel(prefix=prefix, config=values)
    return None


def _adapters(model: Any, prefix: str, replica: Replica) -> HuggingFaceModel:
    """The active adapter of a model of peft, as peft would save it."""
    from peft import PeftModel, get_peft_model_state_dict  # its model has imported it

    of_peft = isinstance(model, PeftModel)
    active = [model.active_adapter] if of_peft else model.active_adapters()
    adapter = str(active[0])
    values = model.peft_config[adapter].to_dict() | {"inference_mode": True}
    found = HuggingFaceModel(
        prefix=prefix, config=json.loads(json.dumps(values, default=_plain)), adapter=adapter
    )
    tensors = {MODEL + n: t for n, t in {**replica.parameters, **replica.model_buffers}.items()}
    own = replica.state_dicts[""].items()
    state = {key.removeprefix(prefix): tensors[n] for key, n in own if key.startswith(prefix)}
    try:
        # Without embeddings that are not trained: peft would look for the base on its hub.
        saved = get_peft_model_state_dict(model, state, adapter, save_embedding_layers=False)
    except Exception as error:  # noqa: BLE001  # whatever peft does not support
        return found.model_copy(update={"lost": f"peft cannot save the adapters: {error}"})
    trained = {n: tensors[n] for n in _changing(replica) if n.startswith(MODEL + prefix)}
    names = {id(tensor): name for name, tensor in tensors.items()}
    for tensor in (each for each in saved.values() if id(each) not in names):
        # Of prompts peft saves a copy.
        names[id(tensor)] = next((n for n, t in trained.items() if _are_equal(t, tensor)), "")
    root = "" if of_peft else "base_model.model."
    keys = {f"{root}{key}": names[id(tensor)] for key, tensor in saved.items()}
    lost = [*active[1:], *(key for key, name in keys.items() if not name)]
    lost += [name.removeprefix(MODEL) for name in trained.keys() - keys.values()]
    if lost:
        return found.model_copy(update={"lost": f"{min(lost)} would not be as trained"})
    return found.model_copy(update={"keys": keys})


def _changing(replica: Replica) -> set[str]:
    """Names of the model's tensors that training changes."""
    stepped = {p for each in replica.optimizers for _, s in states_of(each) for p in s}
    statistics = {
        id(buffer)
        for module in replica.model.modules()
        if isinstance(module, _NormBase) and module.training
        for buffer in module.buffers()
    }
    parameters = replica.parameters.items()
    changing = {name for name, p in parameters if p.requires_grad or p in stepped}
    changing |= {name for name, b in replica.model_buffers.items() if id(b) in statistics}
    return {MODEL + name for name in changing}


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other.to(one))


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set) else str(value)
