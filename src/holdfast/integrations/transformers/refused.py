"""What a Trainer cannot do in a run, and what to do instead."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from holdfast.errors import JobError


def check(trainer: Any, given: dict[str, Any]) -> None:
    """Check a Trainer before it trains.

    Args:
        trainer: The Trainer.
        given: The arguments of `train`, by name.

    Raises:
        JobError: It is to do what a run cannot; all of it is named.
    """
    args = trainer.args
    found = {
        "resume_from_checkpoint": (
            bool(given.get("resume_from_checkpoint")),
            "resume the run: holdfast train --resume",
        ),
        "trial": (given.get("trial") is not None, "use holdfast tune"),
        "FSDP": (trainer.is_fsdp_enabled, "remove fsdp"),
        "DeepSpeed": (trainer.is_deepspeed_enabled, "remove deepspeed"),
        "fp16": (args.fp16, "set bf16"),
        "torch_compile": (args.torch_compile, "remove it"),
        "auto_find_batch_size": (args.auto_find_batch_size, "set per_device_train_batch_size"),
        "train_sampling_strategy=batch_rebalance": (
            getattr(args, "train_sampling_strategy", "") == "batch_rebalance",
            "use random, or group_by_length",
        ),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in ("no", False),
            "the run's metrics count the tokens of language models",
        ),
        "an IterableDataset": (
            isinstance(trainer.train_dataset, IterableDataset),
            "give a data set with a length",
        ),
        "a layer-wise or paged optimizer that steps in the backward pass": (
            "layerwise" in str(args.optim) or "lomo" in str(args.optim),
            "use another optim",
        ),
    }
    refused = [f"{what} ({instead})" for what, (is_given, instead) in found.items() if is_given]
    if refused:
        raise JobError(f"a Trainer in a run cannot use {', '.join(refused)}")
    if trainer.has_trained:
        raise JobError("train() was called twice; a run has one training loop")
